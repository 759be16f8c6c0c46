// bench/backends/plain_nccl.hpp: NCCL as its users have it, without hvd: its communicator, and its errors.
#pragma once

#include <hvd/broadcast.hpp>
#include <hvd/transport/nccl/library.hpp>
#include <hvd/transport/shm.hpp>

#include <array>
#include <bit>
#include <stdexcept>
#include <string>
#include <string_view>

namespace hvd::bench {

/// Throws NCCL's error of a failed call.
inline void must(detail::nccl_result code, std::string_view what) {
  if (code == detail::nccl_success) [[likely]]
    return;
  throw std::runtime_error(std::string(what) + ": NCCL says " + detail::get_nccl().error_text(code));
}

/// A communicator on the current GPU: blocking, with NCCL's defaults. Ranks meet over `control`.
class plain_communicator {
 public:
  explicit plain_communicator(ShmTransport& control) {
    std::array<char, sizeof(detail::nccl_unique_id)> id{};
    if (control.rank() == 0) {
      detail::nccl_unique_id mine{};
      must(nccl_.unique_id(&mine), "ncclGetUniqueId");
      id = std::bit_cast<decltype(id)>(mine);
    }
    hvd::broadcast(control, id);
    detail::nccl_config config;
    must(nccl_.comm_init(&comm_, control.size(), std::bit_cast<detail::nccl_unique_id>(id), control.rank(), &config),
         "ncclCommInitRankConfig");
  }
  plain_communicator(const plain_communicator&) = delete;
  plain_communicator& operator=(const plain_communicator&) = delete;
  ~plain_communicator() { nccl_.comm_destroy(comm_); }
  [[nodiscard]] detail::nccl_comm get() const noexcept { return comm_; }

 private:
  const detail::nccl_library& nccl_ = detail::get_nccl();
  detail::nccl_comm comm_ = nullptr;
};

}  // namespace hvd::bench
