// hvd/eigen.hpp: Eigen's dense vectors, matrices, maps and contiguous blocks as buffers.
#pragma once

#include <hvd/buffer.hpp>

#include <Eigen/Core>

#include <cstddef>
#include <span>
#include <type_traits>

namespace hvd::inline HVD_ABI {

namespace detail {

template <class Derived>
Derived eigen_dense(const Eigen::DenseBase<Derived>&);
template <class B>
concept eigen_expression = requires(const B& b) { detail::eigen_dense(b); };

/// Contiguous for every value, as far as the type tells: plain objects and maps of unit stride; blocks of whole
/// columns of a column-major matrix (or whole rows of a row-major one); segments of vectors.
template <class B>
constexpr bool eigen_contiguous() {
  if constexpr (!(bool(Eigen::internal::traits<B>::Flags & Eigen::DirectAccessBit))) {
    return false;
  } else if constexpr (B::InnerStrideAtCompileTime != 1) {
    return false;
  } else if constexpr (B::IsVectorAtCompileTime) {
    return true;
  } else {
    constexpr auto outer = B::OuterStrideAtCompileTime;
    constexpr auto inner_size = B::IsRowMajor ? B::ColsAtCompileTime : B::RowsAtCompileTime;
    if constexpr (requires { typename B::PlainObject; } && std::is_same_v<B, typename B::PlainObject>) {
      return true;
    } else if constexpr (outer != Eigen::Dynamic && inner_size != Eigen::Dynamic) {
      return outer == inner_size;
    } else {
      return Eigen::internal::traits<B>::OuterStrideAtCompileTime == 0;
    }
  }
}
template <class X, int Rows, int Cols, bool InnerPanel>
constexpr bool eigen_panel(const Eigen::Block<X, Rows, Cols, InnerPanel>*) {
  return InnerPanel && eigen_contiguous<std::remove_const_t<X>>();
}
template <class P, int Options, class Stride>
constexpr bool eigen_panel(const Eigen::Map<P, Options, Stride>*) {
  // A map with no stride of its own is packed.
  return Stride::OuterStrideAtCompileTime == 0 && Stride::InnerStrideAtCompileTime <= 1 &&
         Stride::InnerStrideAtCompileTime >= 0;
}
constexpr bool eigen_panel(const void*) { return false; }

}  // namespace detail

template <detail::eigen_expression B>
struct buffer_access<B> {
  template <class M>
  static auto span(M& m) {
    static_assert(detail::eigen_contiguous<B>() || detail::eigen_panel(static_cast<const B*>(nullptr)),
                  "hvd: this Eigen expression is not known to be contiguous in memory (an expression without storage, "
                  "a block of part of the rows, a strided map, a row of a column-major matrix); copy it first with "
                  ".eval(), or take whole columns: m.middleCols(j, n), m.col(j)");
    using element = std::remove_pointer_t<decltype(m.data())>;
    return std::span<element>(m.data(), static_cast<std::size_t>(m.size()));
  }
};

}  // namespace hvd::inline HVD_ABI
