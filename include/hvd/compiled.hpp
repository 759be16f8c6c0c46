// hvd/compiled.hpp: the parts of hvd that take long to compile, compiled once for a program.
//
// If all files of a program are compiled with -DHVD_COMPILED=1, they leave out the kernels of all types and operations,
// the engine, and what it and fusion do in shared memory. One file of the program then includes this
// header; alternatively, link the library that Meson builds: `dependency('hvd-compiled')`. Only the compile time
// changes.
#pragma once

#include <hvd/version.hpp>

#include <hvd/engine.hpp>
#include <hvd/engine/implementation.hpp>
#include <hvd/fusion.hpp>
#include <hvd/transport/shm.hpp>

#include <array>
#include <cstddef>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

#if HVD_COMPILED

namespace hvd::inline HVD_ABI {

namespace detail {

/// Null if an operation is not defined for the type.
template <std::size_t Combine, std::size_t... Type>
constexpr auto kernel_makers(std::index_sequence<Type...>) {
  const auto maker = []<class T>(std::type_identity<T>) -> kernel (*)() {
    using combine = std::tuple_element_t<Combine, combines>;
    constexpr bool orders = std::is_same_v<combine, minimum> || std::is_same_v<combine, maximum>;
    if constexpr (orders ? is_ordered<T> : is_number<T>) {
      return &make_kernel<T, combine>;
    } else {
      return nullptr;
    }
  };
  return std::array{maker(std::type_identity<std::tuple_element_t<Type, dtypes>>())...};
}

kernel compiled_kernel(std::size_t type, std::size_t combine) noexcept {
  static constexpr auto makers = []<std::size_t... Combine>(std::index_sequence<Combine...>) {
    return std::array{kernel_makers<Combine>(std::make_index_sequence<std::tuple_size_v<dtypes>>())...};
  }(std::make_index_sequence<std::tuple_size_v<combines>>());
  return makers[combine][type]();
}

template std::shared_ptr<shm_group> join_group(group_name, int, int, const sharing_options&, std::uint64_t,
                                               const watch&, std::shared_ptr<job_claims>);

template void run(ShmTransport&, const allreduce_call&, const automatic<>&);
template void run(ShmTransport&, const reduce_call&, const automatic<>&);
template void run(ShmTransport&, const reduce_scatter_call&, const automatic<>&);
template void run(ShmTransport&, const broadcast_call&, const automatic<>&);
template void run(ShmTransport&, const allgather_call&, const automatic<>&);

conversions find_conversions(dtype type, dtype wire) noexcept { return make_conversions(type, wire); }

}  // namespace detail

template class FusionBuffer<ShmTransport>;
template class detail::erased_transport_on<ShmTransport>;
template class detail::erased_transport_of<ShmTransport>;

}  // namespace hvd::inline HVD_ABI

#endif
