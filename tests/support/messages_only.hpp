// tests/support/messages_only.hpp: a transport whose ranks have no common memory, made of one whose ranks do.
#pragma once

#include <hvd/selection.hpp>
#include <hvd/shared_array.hpp>
#include <hvd/transport/shm.hpp>

#include <cstddef>
#include <memory>
#include <utility>

namespace hvd::test {

/// Messages of ShmTransport, and a selector, so that `automatic` measures.
class MessagesOnly {
 public:
  explicit MessagesOnly(ShmTransport over) : over_(std::move(over)) {}

  [[nodiscard]] int rank() const { return over_.rank(); }
  [[nodiscard]] int size() const { return over_.size(); }
  void barrier() { over_.barrier(); }
  [[nodiscard]] MessagesOnly split(int color, int key) { return MessagesOnly(over_.split(color, key)); }
  void send(const std::byte* data, std::size_t bytes, int peer) { over_.send(data, bytes, peer); }
  void recv(std::byte* data, std::size_t bytes, int peer) { over_.recv(data, bytes, peer); }
  void exchange(const std::byte* out, std::size_t out_bytes, int to, std::byte* in, std::size_t in_bytes, int from) {
    over_.exchange(out, out_bytes, to, in, in_bytes, from);
  }
  [[nodiscard]] selector& selection() { return selection_; }
  template <class T>
  [[nodiscard]] shared_array<T> alloc_shared(std::size_t n) {
    return over_.template alloc_shared<T>(n);
  }

 private:
  ShmTransport over_;
  selector selection_;
};

}  // namespace hvd::test
