// hvd/buffer.hpp: what may be passed as a buffer, and how it becomes a span.
#pragma once

#include <hvd/dtype.hpp>

#include <cstddef>
#include <ranges>
#include <span>
#include <type_traits>

namespace hvd::inline HVD_ABI {

/// Makes a type a buffer: specialise with `static std::span<T> span(B& b)`. Contiguous sized ranges
/// (std::span, std::vector, std::array, C arrays, shared_array) need no specialisation; hvd/eigen.hpp adds
/// Eigen's dense types.
template <class B>
struct buffer_access {};

namespace detail {

template <class B>
concept custom_buffer = requires(std::remove_reference_t<B>& b) { buffer_access<std::remove_cvref_t<B>>::span(b); };
template <class B>
concept range_buffer = std::ranges::range<B&> && !custom_buffer<B>;

}  // namespace detail

/// Anything that can stand where a collective takes data. (That the elements are contiguous and of a supported
/// type is checked by `as_span`, with a message.)
template <class B>
concept Buffer = detail::custom_buffer<B> || detail::range_buffer<B>;

namespace detail {
/// A pointer, not an array, which would also convert to one: arrays know their length and are buffers.
template <class P>
concept Pointer = std::is_pointer_v<std::remove_reference_t<P>>;
}  // namespace detail

/// The elements of a buffer as a span (const if the buffer is). Compile-time errors for anything that is not
/// contiguous memory of trivially copyable elements.
template <Buffer B>
constexpr auto as_span(B&& b) {
  if constexpr (detail::custom_buffer<B>) {
    return buffer_access<std::remove_cvref_t<B>>::span(b);
  } else {
    static_assert(std::ranges::contiguous_range<B&> && std::ranges::sized_range<B&>,
                  "hvd: a buffer must be contiguous memory of known size (std::span, std::vector, std::array, "
                  "...); std::vector<bool>, lists and strided views are not: copy them first");
    using element = std::remove_reference_t<std::ranges::range_reference_t<B&>>;
    static_assert(Element<std::remove_cv_t<element>>,
                  "hvd: a buffer's elements must be trivially copyable values, not pointers or classes with "
                  "copy constructors: other ranks receive their bytes");
    return std::span<element>(std::ranges::data(b), std::ranges::size(b));
  }
}

/// As `as_span`, for output: a compile-time error if the buffer is const.
template <Buffer B>
constexpr auto as_output(B&& b) {
  auto s = as_span(b);
  static_assert(!std::is_const_v<typename decltype(s)::element_type>, "hvd: an output buffer must not be const");
  return s;
}

/// The element type of a buffer, without const.
template <Buffer B>
using element_of = typename decltype(as_span(std::declval<std::remove_reference_t<B>&>()))::value_type;

}  // namespace hvd::inline HVD_ABI
