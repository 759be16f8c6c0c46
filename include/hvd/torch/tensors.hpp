// hvd/torch/tensors.hpp: types and tensors of libtorch as hvd sees them.
#pragma once

#include <hvd/dtype.hpp>
#include <hvd/error.hpp>
#include <hvd/tensors.hpp>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <c10/util/complex.h>

#include <concepts>
#include <cstddef>
#include <ranges>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_set>

namespace hvd::inline HVD_ABI {

template <>
inline constexpr dtype dtype_of<c10::Half> = dtype::float16;
template <>
inline constexpr dtype dtype_of<c10::BFloat16> = dtype::bfloat16;
template <>
inline constexpr dtype dtype_of<c10::complex<float>> = dtype::complex64;
template <>
inline constexpr dtype dtype_of<c10::complex<double>> = dtype::complex128;

/// The dtype of a tensor's elements. Errors: unsupported for types that hvd does not have, such as quantized numbers.
inline dtype torch_dtype(at::ScalarType type) {
  switch (type) {
#define HVD_TORCH_CASE(T, NAME)                                                                                        \
  case at::ScalarType::NAME:                                                                                           \
    if constexpr (dtype_of<T> != dtype::user) return dtype_of<T>;                                                      \
    break;
    AT_FORALL_SCALAR_TYPES_WITH_COMPLEX_AND_QINTS(HVD_TORCH_CASE)
#undef HVD_TORCH_CASE
    default: break;
  }
  detail::fail(error_kind::unsupported, {"hvd does not support elements of type ", c10::toString(type),
                                         " of libtorch; convert the tensor first, for example with .to(at::kFloat)"});
}

namespace detail {

/// `what` begins the sentence.
inline fused view_of_torch(const at::Tensor& t, std::string_view what) {
  const auto refuse = [&](std::string_view why, std::string_view remedy) {
    fail(error_kind::invalid_argument, {what, " ", why, "; hvd takes dense memory of the host: ", remedy});
  };
  if (!t.defined()) refuse("is undefined, as a gradient is before the first backward pass", "make it first");
  if (t.layout() != at::kStrided) refuse("is sparse, or has a layout that is not strided", "pass .to_dense()");
  if (!t.is_cpu()) refuse("is on device " + t.device().str(), "pass .cpu()");
  if (t.is_conj() || t.is_neg()) refuse("is a conjugate or negated view", "pass .resolve_conj().resolve_neg()");
  if (!t.is_non_overlapping_and_dense()) {
    refuse("is not contiguous: its elements have gaps between them or share memory", "pass .contiguous()");
  }
  auto* const data = static_cast<std::byte*>(t.data_ptr());
  return {data, data, static_cast<std::size_t>(t.numel()), torch_dtype(t.scalar_type())};
}

template <class T>
concept torch_tensor = std::same_as<std::remove_cvref_t<T>, at::Tensor>;

}  // namespace detail

/// A tensor as input and output, for an hvd::tensor_list: `list.add(hvd::view_of(t))`. Its elements come in the order
/// in which they lie in memory, so ranks must agree on the strides. The memory must outlive the call that the view is
/// passed to. Autograd does not notice writes to it. Errors: invalid_argument with the remedy for a tensor that is
/// undefined, sparse, on a device, or not dense in memory; those of torch_dtype.
inline fused view_of(const at::Tensor& t) { return detail::view_of_torch(t, "hvd::view_of: the tensor"); }

/// A list of tensors: `hvd::broadcast(comm, hvd::tensors(model->parameters()))`. It views memory that another tensor,
/// such as a module's, must keep alive. A tensor that comes twice, such as a layer that a model uses in two places, is
/// in the list once. Errors: those of view_of.
template <std::ranges::range R>
  requires detail::torch_tensor<std::ranges::range_reference_t<R&>>
[[nodiscard]] tensor_list tensors(R&& all) {
  tensor_list list;
  std::unordered_set<const void*> known;
  for (const at::Tensor& t : all) {
    const fused view = view_of(t);
    if (view.count == 0 || known.insert(view.in).second) list.add(view);
  }
  return list;
}
template <detail::torch_tensor First, detail::torch_tensor... Rest>
[[nodiscard]] tensor_list tensors(First&& first, Rest&&... rest) {
  tensor_list list;
  list.add(view_of(first));
  (list.add(view_of(rest)), ...);
  return list;
}

}  // namespace hvd::inline HVD_ABI
