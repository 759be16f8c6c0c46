// hvd/tensors.hpp: many tensors as one argument.
#pragma once

#include <hvd/buffer.hpp>
#include <hvd/dtype.hpp>
#include <hvd/error.hpp>

#include <concepts>
#include <cstddef>
#include <ranges>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace hvd::inline HVD_ABI {

/// The most bytes of tensors that travel together by default (see FusionBuffer::threshold): Horovod's default.
inline constexpr std::size_t default_fusion_threshold = std::size_t{128} << 20;

/// A tensor of a batch, on this rank: views of its input and output, with its type as a value.
struct fused {
  const std::byte* in = nullptr;  ///< null only if it has no elements
  std::byte* out = nullptr;       ///< equal to `in`, or without overlap with it; no overlap with other tensors
  std::size_t count = 0;          ///< elements of `in`
  dtype type{};
  /// The type in which it travels and is reduced: float16 or bfloat16 for float32, float32 for float64; otherwise its
  /// own type.
  dtype wire = type;

  /// A buffer that is input and output. The memory must outlive the call that the tensor is passed to.
  template <class B>
  static fused of(B&& inout) {
    detail::require_borrowed<B>();
    if constexpr (Buffer<B>) {
      const auto s = as_output(inout);
      return of(s, s);
    }
  }
  /// `count` is the number of elements of `in`; `out` has as many for allreduce and broadcast.
  template <class In, class Out>
  static fused of(In&& in, Out&& out) {
    detail::require_borrowed<Out>();
    static_assert(std::is_same_v<element_of<In>, element_of<Out>>,
                  "hvd: input and output must have the same element type; convert one of them first");
    fused f = input(std::forward<In>(in));
    f.out = reinterpret_cast<std::byte*>(as_output(out).data());
    return f;
  }
  /// Without output: for operations of the engine that allocate their result.
  template <class In>
  static fused input(In&& in) {
    detail::require_borrowed<In>();
    using element = element_of<In>;
    static_assert(dtype_of<element> != dtype::user,
                  "hvd: named tensors and lists of tensors contain numbers or bool, because ranks compare the names of "
                  "types; for another name of one of these types, declare: template <> inline constexpr hvd::dtype "
                  "hvd::dtype_of<T> = hvd::dtype::float16;");
    const auto from = as_span(in);
    return {reinterpret_cast<const std::byte*>(from.data()), nullptr, from.size(), dtype_of<element>};
  }
};

/// Tensors of any types, for one call of allreduce or broadcast (hvd/fusion.hpp, hvd/engine.hpp). It holds views: the
/// tensors must live until that call is done. A list can be reused for all steps while its tensors stay at the same
/// addresses.
class tensor_list {
 public:
  /// A buffer that is input and output.
  template <class B>
    requires(!std::same_as<std::remove_cvref_t<B>, fused>)
  tensor_list& add(B&& inout) {
    return add(fused::of(std::forward<B>(inout)));
  }
  /// Input and output of the same length. Errors: invalid_argument.
  template <class In, class Out>
  tensor_list& add(In&& in, Out&& out) {
    detail::require_borrowed<In>();
    detail::require_borrowed<Out>();
    const std::size_t given = as_span(in).size(), taken = as_span(out).size();
    if (given != taken) {
      detail::fail(error_kind::invalid_argument, {"tensor_list: the output of tensor ", size(), " has ", taken,
                                                  " elements; allowed: ", given, " (as the input)"});
    }
    return add(fused::of(std::forward<In>(in), std::forward<Out>(out)));
  }
  /// A tensor whose type is known only at run time.
  tensor_list& add(const fused& one) {
    all_.push_back(one);
    return *this;
  }
  void clear() noexcept { all_.clear(); }

  [[nodiscard]] std::size_t size() const noexcept { return all_.size(); }
  operator std::span<const fused>() const noexcept { return all_; }

 private:
  std::vector<fused> all_;
};

namespace detail {

/// A range of buffers that is not itself a buffer.
template <class R>
concept range_of_buffers =
    std::ranges::range<R&> && !custom_buffer<R> && requires(std::ranges::range_reference_t<R&> b) {
      requires Buffer<decltype(b)>;
      requires View<std::remove_cvref_t<decltype(b)>> || !Element<std::remove_cvref_t<decltype(b)>>;
    };

}  // namespace detail

/// A list of these buffers, each input and output, of any types: `hvd::allreduce(comm, hvd::tensors(a, b, c))`.
template <class... B>
  requires(sizeof...(B) > 0)
[[nodiscard]] tensor_list tensors(B&&... inout) {
  tensor_list list;
  (list.add(std::forward<B>(inout)), ...);
  return list;
}
/// A list of the buffers in a range, such as a std::vector<std::vector<float>>.
template <detail::range_of_buffers R>
[[nodiscard]] tensor_list tensors(R&& buffers) {
  static_assert(std::is_lvalue_reference_v<R> || std::ranges::enable_borrowed_range<std::remove_cvref_t<R>> ||
                    detail::View<std::remove_cvref_t<std::ranges::range_reference_t<R&>>>,
                "hvd: these buffers are temporaries, which are gone before the operation is done; pass a variable");
  tensor_list list;
  for (auto&& one : buffers) list.add(std::forward<decltype(one)>(one));
  return list;
}

}  // namespace hvd::inline HVD_ABI
