// hvd/shared_memory/peer_memory.hpp: the words, lines and staging rings by which ranks with common memory synchronise.
//
// This is the interface of a PeerMemory transport for algorithms. It works with memory from any source: a mapped
// segment between processes, or private memory between threads. Rules for its users:
//  * one writer at a time for a cache line; a word only grows; loads acquire and stores release, and there is no
//    read-modify-write and no fence on the data path;
//  * every wait names the peer it waits for. It fails, with an hvd::error on every rank, if that peer is lost, if a
//    rank has failed, or at the deadline.
#pragma once

#include <hvd/detail/cpu.hpp>
#include <hvd/shared_memory/exchange.hpp>
#include <hvd/shared_memory/shared_block.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace hvd::inline HVD_ABI::detail {

/// One rank's membership of a group with common memory, with what algorithms and messages keep between calls.
class peer_memory : public peer_exchanges {
 public:
  using peer_exchanges::peer_exchanges;

  void add_block(const shared_block& b) { blocks_.add(b); }
  void remove_block(std::uint32_t id) noexcept { blocks_.remove(id); }
  /// The block whose part of this rank contains [p, p + bytes), or null.
  [[nodiscard]] const shared_block* find_block(const std::byte* p, std::size_t bytes) const noexcept {
    return blocks_.find(p, bytes, rank_);
  }
  [[nodiscard]] const shared_block* block(std::uint32_t id) const noexcept { return blocks_.find(id); }

  /// The state of messages between this rank and `peer` (hvd/shared_memory/messages.hpp).
  [[nodiscard]] std::uint64_t& sent(int peer) noexcept { return sent_[static_cast<std::size_t>(peer)]; }
  [[nodiscard]] std::uint64_t& taken(int peer) noexcept { return taken_[static_cast<std::size_t>(peer)]; }

  /// Private memory for algorithms, kept between calls to save allocations.
  std::byte* scratch(std::size_t bytes) {
    if (bytes > scratch_bytes_) {
      scratch_.reset(static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{cache_line})));
      scratch_bytes_ = bytes;
    }
    return scratch_.get();
  }
  /// size() pointers each, for the inputs and outputs of a kernel.
  [[nodiscard]] const std::byte** inputs() noexcept { return inputs_.get(); }
  [[nodiscard]] std::byte** outputs() noexcept { return outputs_.get(); }

 private:
  [[nodiscard]] std::size_t ranks() const noexcept { return static_cast<std::size_t>(size_); }

  shared_blocks blocks_;
  std::unique_ptr<std::uint64_t[]> sent_ = std::make_unique<std::uint64_t[]>(ranks());
  std::unique_ptr<std::uint64_t[]> taken_ = std::make_unique<std::uint64_t[]>(ranks());
  std::unique_ptr<const std::byte*[]> inputs_ = std::make_unique<const std::byte*[]>(ranks());
  std::unique_ptr<std::byte*[]> outputs_ = std::make_unique<std::byte*[]>(ranks());
  struct aligned_delete {
    void operator()(std::byte* p) const noexcept { ::operator delete[](p, std::align_val_t{cache_line}); }
  };
  std::unique_ptr<std::byte[], aligned_delete> scratch_;
  std::size_t scratch_bytes_ = 0;
};

}  // namespace hvd::inline HVD_ABI::detail
