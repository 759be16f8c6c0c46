// hvd/eigen.hpp: Eigen's dense vectors, matrices, maps and contiguous blocks as buffers.
#pragma once

#include <hvd/buffer.hpp>
#include <hvd/dtype.hpp>

#include <Eigen/Core>

#include <cstddef>
#include <span>
#include <type_traits>

namespace hvd::inline HVD_ABI {

template <>
inline constexpr dtype dtype_of<Eigen::half> = dtype::float16;
template <>
inline constexpr dtype dtype_of<Eigen::bfloat16> = dtype::bfloat16;

namespace detail {

template <class Derived>
Derived eigen_dense(const Eigen::DenseBase<Derived>&);
template <class B>
concept eigen_expression = requires(const B& b) { detail::eigen_dense(b); };

/// True if the type shows that every B is contiguous: vectors of unit stride, and matrices whose columns (rows, if
/// row-major) are known to follow one another.
template <class B>
constexpr bool eigen_strides_packed() {
  if constexpr ((static_cast<unsigned>(Eigen::internal::traits<B>::Flags) & Eigen::DirectAccessBit) == 0) {
    return false;
  } else {
    constexpr int inner = B::InnerStrideAtCompileTime, outer = B::OuterStrideAtCompileTime;
    constexpr int rows = B::RowsAtCompileTime, cols = B::ColsAtCompileTime;
    constexpr bool is_vector = B::IsVectorAtCompileTime, is_row_major = B::IsRowMajor;
    return inner == 1 && (is_vector || (outer != Eigen::Dynamic && outer == (is_row_major ? cols : rows)));
  }
}
/// A matrix or array object is always packed.
template <class B>
inline constexpr bool eigen_packed = std::is_base_of_v<Eigen::PlainObjectBase<B>, B> || eigen_strides_packed<B>();
/// A map without its own strides is packed like its object.
template <class P, int Options, int Outer, int Inner>
inline constexpr bool eigen_packed<Eigen::Map<P, Options, Eigen::Stride<Outer, Inner>>> =
    (Outer == 0 && (Inner == 0 || Inner == 1)) ||
    eigen_strides_packed<Eigen::Map<P, Options, Eigen::Stride<Outer, Inner>>>();
/// Whole columns (rows) of something packed.
template <class X, int Rows, int Cols>
inline constexpr bool eigen_packed<Eigen::Block<X, Rows, Cols, true>> =
    eigen_packed<std::remove_const_t<X>> || eigen_strides_packed<Eigen::Block<X, Rows, Cols, true>>();

}  // namespace detail

/// Lets collectives take Eigen's dense objects: vectors, matrices, arrays, maps, and blocks of whole columns (whole
/// rows, if row-major). They are inputs, and outputs if they can be assigned to. Elements come in the order in which
/// Eigen stores them, so ranks must agree on that order. No copy is made. An expression whose type does not show that
/// it is contiguous does not compile; the message explains what to write instead.
template <detail::eigen_expression B>
struct buffer_access<B> {
  static constexpr bool borrowed = !std::is_base_of_v<Eigen::PlainObjectBase<B>, B>;
  template <class M>
  static auto span(M& m) {
    static_assert(detail::eigen_packed<B>,
                  "hvd: this Eigen expression is not known to be contiguous in memory (an expression without storage, "
                  "a block of part of the rows, a strided map, a row of a column-major matrix); copy it first with "
                  ".eval(), or take whole columns: m.middleCols(j, n), m.col(j)");
    using element = std::remove_pointer_t<decltype(m.data())>;
    return std::span<element>(m.data(), static_cast<std::size_t>(m.size()));
  }
};

}  // namespace hvd::inline HVD_ABI
