// Hides all columns of an attention mask but a range per row, in place. No query is left without a key: softmax over
// hidden columns alone would be NaN, or attend to them all.
#pragma once

#include <cstdint>
#include <type_traits>

#include "../mask_rewrite.h"

namespace seer::cpu {

// Queries [begin, end), counted through the rows.
template <typename Mask>
SEER_INLINE void rewrite_queries(const MaskRewriteParams& p, int64_t begin, int64_t end) {
  using Element = typename Mask::Element;
  using Wide = std::conditional_t<sizeof(Element) == 4, uint32_t, uint16_t>;
  using Bits = std::conditional_t<sizeof(Element) == 1, uint8_t, Wide>;  // loops over structs aren't vectorised
  const Bits hidden = bit_cast<Bits>(Mask::hidden());
  for (int64_t i = begin; i < end; ++i) {
    const int64_t b = i / p.Q, q = i - b * p.Q;
    Element* const query = static_cast<Element*>(p.mask) + b * p.row_stride + q * p.query_stride;
    const int64_t first = p.begin_of(b), last = p.end_of(b);
    Bits any = 0;
    for (int64_t k = first; k < last; ++k) {
      const Bits bits = bit_cast<Bits>(query[k]);
      const bool visible = Mask::visible(query[k]);
      query[k] = bit_cast<Element>(visible ? bits : hidden);
      any |= visible ? 1 : 0;
    }
    for (int64_t k = 0; k < first; ++k) query[k] = Mask::hidden();
    for (int64_t k = last; k < p.L; ++k) query[k] = Mask::hidden();
    if (any == 0) query[p.fallback_of(b)] = Mask::shown();
  }
}

// Queries [begin, end), counted through the rows. L is not 0.
SEER_INLINE void mask_rewrite(const MaskRewriteParams& p, int64_t begin, int64_t end) {
  if (!p.additive) return rewrite_queries<BooleanMask>(p, begin, end);
  switch (p.dtype) {
    case DType::kFloat32: return rewrite_queries<AdditiveMask<float>>(p, begin, end);
    case DType::kBFloat16: return rewrite_queries<AdditiveMask<BFloat16>>(p, begin, end);
    case DType::kFloat16: return rewrite_queries<AdditiveMask<Float16>>(p, begin, end);
  }
}

}  // namespace seer::cpu
