// The schemas of all ops. Each backend's file registers its implementations at its foot.
#include <torch/csrc/stable/library.h>

STABLE_TORCH_LIBRARY(seer, m) {
  m.def("mlp_sparsity(Tensor act, float threshold) -> Tensor");
  m.def("silu_mul_sparsity(Tensor gate, Tensor up, float threshold) -> (Tensor act, Tensor sparsity)");
  m.def(
      "snr_boundary(Tensor sparsity, Tensor? lengths=None, *, int window=8, float min_snr=1.0, float plateau=0.9, "
      "float min_jump=0.0, int min_keep=1) -> (Tensor boundary, Tensor snr)");
  m.def("varlen_repack(Tensor x, Tensor starts, Tensor cu_seqlens, SymInt capacity) -> Tensor");
  m.def("varlen_unpack(Tensor packed, Tensor columns, Tensor cu_seqlens, SymInt length, float fill=0) -> Tensor");
  m.def("mask_rewrite(Tensor(a!) mask, Tensor columns, Tensor lengths) -> ()");
  m.def(
      "truncate_repack(Tensor hidden, Tensor ids, Tensor starts, Tensor lengths, SymInt capacity, *, "
      "Tensor? offsets=None) -> (Tensor hidden, Tensor ids, Tensor positions, Tensor rows, Tensor cu_seqlens)");
  m.def(
      "token_confidence(Tensor logits, str kind=\"prob\", Tensor? suppress=None, *, Tensor? chosen=None, "
      "Tensor? temperature=None, Tensor? key=None) -> (Tensor token, Tensor confidence)");
  m.def(
      "commit_tokens(Tensor(a!) ids, Tensor slots, Tensor token, Tensor confidence, Tensor cu_slots, Tensor quota, *, "
      "int mask_id, Tensor? threshold=None) -> (Tensor written, Tensor remaining)");
}
