// What each op hands to its kernels, on every backend: pointers, sizes, strides. The page that explains the library.
// Strides are in elements, sizes and offsets int64_t. Dims: B rows, G window slots, R rows of activations, I
// activations of one row.
#pragma once

#include <cstdint>

#include "types.h"

namespace seer {

SEER_INLINE int64_t clamped(int64_t value, int64_t max) { return value < 0 ? 0 : value > max ? max : value; }

struct MlpSparsityParams {
  const void* act;  // [R, I], last dim dense
  float* sparsity;  // [R], dense
  RowLayout act_rows;
  int64_t R, I;
  float threshold;
  DType dtype;
};

struct SiluMulSparsityParams {
  const void* gate;  // [R, I], last dim dense
  const void* up;    // [R, I], last dim dense
  void* act;         // [R, I], dense
  float* sparsity;   // [R], dense
  RowLayout gate_rows, up_rows;
  int64_t R, I;
  float threshold;
  DType dtype;
};

struct SnrBoundaryParams {
  const float* sparsity;  // [B, G], last dim dense
  IndexArray lengths;     // [B]; data is null where every row has G slots
  int32_t* boundary;      // [B], dense
  float* snr;             // [B], dense
  int64_t B, G, row_stride;
  int64_t window, min_keep;
  double min_snr, plateau, min_jump;

  // Clamped, so that a wrong length in device memory reads nothing out of bounds.
  SEER_INLINE int64_t length_of(int64_t b) const { return clamped(lengths.data ? lengths[b] : G, G); }
};

// Tokens are the slices x[n] of a tensor `[N, ...]`. Each is a number of runs, dense stretches of memory; run r of
// token n is row n * runs + r. Copying asks for the size of the elements only.
struct TokenLayout {
  const void* data;
  RowLayout rows;
  int64_t runs;          // per token
  int64_t run;           // elements
  int32_t element_size;  // bytes

  SEER_INLINE int64_t token_bytes() const { return runs * run * element_size; }
};

struct VarlenRepackParams {
  TokenLayout x;          // [N, ...]
  IndexArray starts;      // [B]
  IndexArray cu_seqlens;  // [B+1]
  void* out;              // [capacity, ...], dense
  int64_t N, B, capacity;
};

struct VarlenUnpackParams {
  TokenLayout packed;     // [T, ...]
  IndexArray columns;     // [B]
  IndexArray cu_seqlens;  // [B+1]
  void* out;              // [B, length, ...], dense
  uint64_t fill;          // one element of what lies outside the rows, its bytes the lowest
  int64_t T, B, length;
};

struct MaskRewriteParams {
  void* mask;                   // [B, Q, L], last dim dense, changed in place
  IndexArray columns, lengths;  // [B]
  int64_t B, Q, L;
  int64_t row_stride, query_stride;
  bool additive;  // biases of `dtype`; else bytes, 0 or not
  DType dtype;

  // The columns [begin, end) that stay, and the one for a query that none is left of. Clamped, so that wrong values in
  // device memory touch nothing out of bounds.
  SEER_INLINE int64_t begin_of(int64_t b) const { return clamped(columns[b], L); }
  SEER_INLINE int64_t end_of(int64_t b) const {
    const int64_t begin = begin_of(b);
    return begin + clamped(lengths[b], L - begin);
  }
  SEER_INLINE int64_t fallback_of(int64_t b) const { return clamped(columns[b], L - 1); }
};

struct TruncateRepackParams {
  TokenLayout hidden;   // [N, H]
  const int64_t* ids;   // [N]
  IndexArray starts;    // [B]
  IndexArray lengths;   // [B]
  IndexArray offsets;   // [B]; data is null where positions start at 0
  void* hidden_out;     // [capacity, H], dense
  int64_t* ids_out;     // [capacity], dense
  int32_t* positions;   // [capacity], dense
  int32_t* rows;        // [capacity], dense
  int32_t* cu_seqlens;  // [B+1], dense
  int64_t N, B, capacity, ids_stride;
};

enum class ConfidenceKind : int32_t { kProb, kMargin, kEntropy };

struct TokenConfidenceParams {
  const void* logits;        // [N, V], last dim dense
  const int64_t* suppress;   // [S]; S is 0 where nothing is suppressed
  const int64_t* chosen;     // [N], or null
  const float* temperature;  // [N], or null
  const int64_t* key;        // [N], or null
  int64_t* token;            // [N], dense
  double* confidence;        // [N], dense
  int64_t N, V, S;
  int64_t row_stride, suppress_stride, chosen_stride, temperature_stride, key_stride;
  ConfidenceKind kind;
  DType dtype;
};

// Float values of any dtype and stride, read as double. Not for inner loops.
struct RealArray {
  const void* data;
  int64_t stride;  // elements
  bool wide;       // float64; else `dtype` tells
  DType dtype;

  SEER_INLINE double operator[](int64_t i) const {
    if (wide) return static_cast<const double*>(data)[i * stride];
    switch (dtype) {
      case DType::kBFloat16: return to_float(static_cast<const BFloat16*>(data)[i * stride]);
      case DType::kFloat16: return to_float(static_cast<const Float16*>(data)[i * stride]);
      default: return static_cast<const float*>(data)[i * stride];
    }
  }
};

struct CommitTokensParams {
  int64_t* ids;          // [T], changed in place
  const int64_t* slots;  // [N], index into ids
  const int64_t* token;  // [N]
  RealArray confidence;  // [N]
  IndexArray cu_slots;   // [B+1]
  IndexArray quota;      // [B]
  RealArray threshold;   // [B]; data is null where no row has one
  int32_t* written;      // [B], dense
  int32_t* remaining;    // [B], dense
  int64_t T, N, B, mask_id;
  int64_t ids_stride, slots_stride, token_stride;
};

}  // namespace seer
