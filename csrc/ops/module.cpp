// The Python module `seer_ext._C`: facts about the build, and the plan of a cut. Importing it registers the ops.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cpu/isa.h"
#include "seer_build_info.h"

namespace py = pybind11;

namespace {

int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

std::pair<int64_t, int64_t> plan_keep(int64_t boundary, int64_t window, int64_t block, int64_t margin) {
  const auto require = [](bool ok, const char* rule, int64_t got) {
    if (!ok) throw py::value_error("plan_keep: " + std::string(rule) + ", got " + std::to_string(got));
  };
  require(window >= 0, "window must be at least 0", window);
  require(boundary >= 0 && boundary <= window, "boundary must lie in [0, window]", boundary);
  require(block >= 1, "block must be at least 1", block);
  require(margin >= 0, "margin must be at least 0", margin);
  const int64_t keep = boundary + std::min(margin, window - boundary);
  if (keep <= block) {
    const int64_t kept = std::min({window, block, round_up(keep, 8)});  // a block is never longer than was asked for
    return {kept, kept};
  }
  return {std::min(window, round_up(keep, block)), block};
}

std::vector<std::string> cpu_isas() {
  std::vector<std::string> names;
  for (const auto* const* level = seer::cpu::isa_available(); *level; ++level) names.emplace_back((*level)->name);
  return names;
}

py::object cpu_isa() {
  const auto* kernels = seer::cpu::isa_kernels();
  return kernels ? py::object(py::str(kernels->name)) : py::none();
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.doc() = "Facts about the build, and the plan of a cut. Importing this module registers torch.ops.seer.";
  m.def("build_info", [] { return std::string(SEER_BUILD_INFO); }, "build_info() -> str: the build's record, as JSON.");
  m.def("cpu_isas", &cpu_isas, "cpu_isas() -> list[str]: levels of the CPU kernels that run here, weakest first.");
  m.def("cpu_isa", &cpu_isa,
        "cpu_isa() -> str | None: the level in use; None if SEER_CPU_ISA names an unavailable one.");
  m.def("plan_keep", &plan_keep, py::arg("boundary"), py::arg("window"), py::arg("block"), py::arg("margin"),
        R"(plan_keep(boundary, window, block, margin) -> (window, block): what is kept of a cut window.

boundary: slots up to the end that was found. window: slots there are. block: slots decoded together.
margin: slots kept past the boundary. What fits one block is one block, rounded up to 8 but never longer than `block`;
more is rounded up to whole blocks. Never more than the window.)");
}
