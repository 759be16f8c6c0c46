// hvd/shared_memory/memory.hpp: where each rank's part of the common memory lies.
#pragma once

#include <hvd/line_costs.hpp>
#include <hvd/shared_memory/layout.hpp>
#include <hvd/shared_memory/staging.hpp>

#include <cstddef>
#include <string>
#include <utility>

#include <sys/mman.h>

namespace hvd::inline HVD_ABI::detail {

/// The common memory of a group, from any source: a mapped segment between processes, or private memory between
/// threads.
class peer_windows {
 public:
  /// `size` and `shape` are values that the caller has checked: the header's may change.
  peer_windows(group_header& header, int size, const geometry& shape, int rank, std::string label)
      : header_(header), geometry_(shape), caches_(header.caches), checks_(header.check != 0), rank_(rank), size_(size),
        label_(std::move(label)), staging_(ring_size(geometry_, caches_, size)) {}
  peer_windows(const peer_windows&) = delete;
  peer_windows& operator=(const peer_windows&) = delete;

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  [[nodiscard]] const std::string& label() const noexcept { return label_; }
  [[nodiscard]] const geometry& shape() const noexcept { return geometry_; }
  [[nodiscard]] const cache_sizes& caches() const noexcept { return caches_; }
  [[nodiscard]] bool checks() const noexcept { return checks_; }
  [[nodiscard]] const line_costs& costs() const noexcept { return costs_; }
  void set_costs(const line_costs& all_ranks_agree_on) noexcept { costs_ = all_ranks_agree_on; }

  [[nodiscard]] std::byte* window(int r) const noexcept {
    return reinterpret_cast<std::byte*>(&header_ + 1) + static_cast<std::size_t>(r) * geometry_.window_bytes;
  }
  [[nodiscard]] control& of(int r) const noexcept { return *reinterpret_cast<control*>(window(r)); }
  [[nodiscard]] control& mine() const noexcept { return of(rank_); }
  /// The address of `p` in the staging ring of rank r's window.
  [[nodiscard]] std::byte* at(int r, const staging_place& p) const noexcept {
    return window(r) + geometry_.ring_at + p.at;
  }
  [[nodiscard]] staging_ring& staging() noexcept { return staging_; }
  /// staging().take(p). Before the first chunk the rings of a small group are mapped at once: page by page that takes 3
  /// us in each of the first 50 calls of 4 KiB. (Kernels before Linux 5.14 refuse it; nothing depends on it.)
  void take(const staging_plan& p) noexcept {
#ifdef MADV_POPULATE_WRITE
    constexpr int few = 8;
    for (int r = 0; p.first == 0 && p.chunks != 0 && size_ <= few && r != size_; ++r) {
      ::madvise(at(r, {}), staging_.bytes(), MADV_POPULATE_WRITE);
    }
#endif
    staging_.take(p);
  }
  [[nodiscard]] const staging_ring& staging() const noexcept { return staging_; }

 protected:
  ~peer_windows() = default;

  group_header& header_;
  const geometry geometry_;  // a copy: nothing another process writes can move our accesses
  const cache_sizes caches_;
  const bool checks_;  // a copy: a forked child, which does not map the memory, may ask
  const int rank_;
  const int size_;
  std::string label_;
  line_costs costs_;
  staging_ring staging_;
};

}  // namespace hvd::inline HVD_ABI::detail
