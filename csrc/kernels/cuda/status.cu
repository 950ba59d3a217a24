#include "compat.cuh"
#include "launchers.h"

extern "C" const char* seer_cuda_error_string(int status) { return seer::cuda::status_text(status); }
