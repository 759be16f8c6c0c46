// tests/gpu/standin/mesh.hpp: how ranks of the stand-in for NCCL meet and move bytes, through a file in shared memory.
//
// Not a transport of hvd's: an error in those must not hide behind itself, and like NCCL inside of a host this one does
// not tell that a peer is gone.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace hvd::standin {

/// What a rank tells the others when they meet.
struct rank_info {
  std::array<unsigned char, 16> uuid;
  char bus[16];
  char host[64];
  int version;
  int multi_rank;  ///< NCCL_MULTI_RANK_GPU_ENABLE
};

class mesh {
 public:
  /// Two sets of channels, so that what the host agrees upon does not mix with what streams move.
  enum plane { of_streams, of_hosts };

  struct transfer {
    bool send = false;
    int peer = 0;
    void* data = nullptr;
    std::size_t bytes = 0;
    std::uint64_t tag = 0;   ///< of the operation: both sides' must be the same
    std::uint64_t note = 0;  ///< which the other side gets, in its header
    // Progress.
    std::size_t done = 0;
    struct {
      std::uint64_t bytes, tag, note;
    } header{};
    std::size_t header_done = 0;
  };

  /// Joins those of this name. Waits until all are there, or `stop`; throws std::runtime_error.
  mesh(const std::string& name, int rank, int size, const rank_info& mine, const std::function<bool()>& stop);
  mesh(const mesh&) = delete;
  mesh& operator=(const mesh&) = delete;
  ~mesh();

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  [[nodiscard]] const rank_info& info(int rank) const;

  /// Moves all of them to the end; those with the same peer and direction go one after another, others side by side.
  /// False if `stop` said so first. Calls `differs` once if the other side sends something else, and waits for `stop`
  /// then.
  bool move(plane p, std::vector<transfer>& all, const std::function<bool()>& stop,
            const std::function<void(const std::string&)>& differs);
  /// A rank that has left or ended, of those that are waited for in `all`; -1 if there is none.
  [[nodiscard]] int find_gone(const std::vector<transfer>& all) const;
  /// Tells the others that this rank is no more.
  void leave();

 private:
  struct head;
  struct channel;
  [[nodiscard]] channel& between(plane p, int from, int to) const;
  bool step(plane p, transfer& t);

  int rank_, size_;
  std::atomic<int> file_{-1};
  void* mapped_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace hvd::standin
