"""The one place that knows the version; setup.py and CMakeLists.txt read this line."""

__version__ = "0.1.0"
