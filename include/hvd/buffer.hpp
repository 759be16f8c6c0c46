// hvd/buffer.hpp: the types that collectives take as buffers, and their conversion to spans.
#pragma once

#include <hvd/dtype.hpp>

#include <concepts>
#include <cstddef>
#include <initializer_list>
#include <ranges>
#include <span>
#include <type_traits>

namespace hvd::inline HVD_ABI {

/// Makes a type a buffer: specialise with `static std::span<T> span(B& b)`. Contiguous sized ranges
/// (std::span, std::vector, std::array, C arrays, shared_array) need no specialisation; hvd/eigen.hpp adds
/// Eigen's dense types. `static constexpr bool borrowed` is true if a B refers to memory that outlives it, like a view,
/// and false if a B owns its memory. Asynchronous calls take a temporary B only if it is true.
template <class B>
struct buffer_access {};

namespace detail {

template <class B>
concept custom_buffer = requires(std::remove_reference_t<B>& b) { buffer_access<std::remove_cvref_t<B>>::span(b); };
/// A type whose buffer_access declares `borrowed`.
template <class B>
concept says_borrowed = requires { requires bool{buffer_access<std::remove_cvref_t<B>>::borrowed}; };
template <class B>
concept says_owning = requires { requires !bool{buffer_access<std::remove_cvref_t<B>>::borrowed}; };
/// True if the type shows that its objects refer to elements they do not own.
template <class E>
inline constexpr bool is_view = std::is_pointer_v<E> || std::ranges::enable_view<E> ||
                                std::ranges::enable_borrowed_range<E> || (custom_buffer<E> && !says_owning<E>);
template <class E>
inline constexpr bool is_view<std::initializer_list<E>> = true;
template <class E>
concept View = is_view<E>;
template <class B>
concept range_buffer = std::ranges::range<B&> && !custom_buffer<B>;

}  // namespace detail

/// Anything that can stand where a collective takes data. (That the elements are contiguous and of a supported
/// type is checked by `as_span`, with a message.)
template <class B>
concept Buffer = detail::custom_buffer<B> || detail::range_buffer<B>;

class tensor_list;

namespace detail {

/// A pointer. Arrays would convert to pointers, but are buffers, because they know their length.
template <class P>
concept Pointer = std::is_pointer_v<std::remove_reference_t<P>>;

}  // namespace detail

/// A buffer whose memory outlives the call that it is passed to: a variable or a view (std::span, an Eigen::Map), but
/// not a temporary that owns its elements. Outputs must be borrowed, and inputs of asynchronous calls, too.
template <class B>
concept BorrowedBuffer =
    Buffer<B> && (std::is_lvalue_reference_v<B> || std::ranges::enable_borrowed_range<std::remove_cvref_t<B>> ||
                  detail::says_borrowed<B>);

namespace detail {

template <class B>
concept Temporary = Buffer<B> && !BorrowedBuffer<B>;
/// True if the result of a call on these buffers and options would be in a temporary, and lost.
template <class B, class... More>
inline constexpr bool loses_output = Temporary<B>;
template <class B, Buffer Out, class... More>
inline constexpr bool loses_output<B, Out, More...> = Temporary<Out>;

/// The first argument of a collective is not a buffer, or the output is a temporary.
template <class B, class... More>
concept NoBuffer =
    !Pointer<B> && !std::same_as<std::remove_cvref_t<B>, tensor_list> && (!Buffer<B> || loses_output<B, More...>);

/// A buffer that asynchronous calls and lists of tensors take.
template <class B>
constexpr void require_borrowed() {
  static_assert(Buffer<B>,
                "hvd: this type is not a buffer: pass a view of its elements, such as std::span(t.data_ptr<float>(), "
                "t.numel()) for a tensor of libtorch, or specialise hvd::buffer_access for the type");
  static_assert(!Buffer<B> || BorrowedBuffer<B>,
                "hvd: this buffer is a temporary that owns its elements, which are gone before the operation is done; "
                "pass a variable, or a view (std::span) of memory that lives until then; hvd::submit_options::keep "
                "holds the owner of such memory");
}

}  // namespace detail

/// The elements of a buffer as a span (const if the buffer is const). Does not compile for anything other than
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
    static_assert(!detail::View<std::remove_cv_t<element>>,
                  "hvd: a buffer's elements must not be pointers, spans or other views: other ranks would receive "
                  "addresses; for many tensors in one call pass hvd::tensors(a, b, c) or an hvd::tensor_list");
    static_assert(Element<std::remove_cv_t<element>>,
                  "hvd: a buffer's elements must be trivially copyable values that can be assigned, not pointers or "
                  "classes with copy constructors or const members: other ranks receive their bytes");
    return std::span<element>(std::ranges::data(b), std::ranges::size(b));
  }
}

/// The same for output: does not compile if the buffer is const.
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
