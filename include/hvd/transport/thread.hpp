// hvd/transport/thread.hpp: ranks as threads of one process.
#pragma once

#include <hvd/detail/deadline.hpp>
#include <hvd/shared_array.hpp>
#include <hvd/shared_memory/agree.hpp>
#include <hvd/shared_memory/peer_communicator.hpp>
#include <hvd/topology.hpp>
#include <hvd/transport.hpp>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <sys/mman.h>

namespace hvd::inline HVD_ABI {

/// Connects threads of one process by the protocols of shared memory, in private memory of the process. If a rank's
/// transport is destroyed (its thread returned or threw), the rank counts as lost for ranks that still wait for it.
class ThreadTransport : public detail::peer_communicator {
 public:
  using options = sharing_options;
  static constexpr std::string_view timeline_name = "SHM";  ///< see timeline_name_of

  /// The memory of a group. Make it once and pass it to every rank's constructor.
  class group {
   public:
    /// For `size` threads. Errors: invalid_argument, no_memory.
    explicit group(int size, const options& opts = options::from_environment())
        : options_(opts), geometry_(detail::make_geometry(size, opts.memory.staging_bytes)),
          memory_(detail::group_bytes(size, geometry_)), handed_(static_cast<std::size_t>(size)) {
      detail::check_limit("failure_policy::timeout", opts.failure.timeout);
      auto* const h = new (memory_.data) detail::group_header;
      h->size = size;
      h->windows = geometry_;
      h->caches = {host().l2, host().l3};
      h->total_bytes = memory_.bytes;
      h->check = opts.failure.check ? 1 : 0;
    }

    /// Marks a rank that cannot join: it counts as lost.
    void lose(int rank) noexcept {
      std::byte* const windows = static_cast<std::byte*>(memory_.data) + sizeof(detail::group_header);
      auto& own =
          *reinterpret_cast<detail::control*>(windows + static_cast<std::size_t>(rank) * geometry_.window_bytes);
      own.self.state.store(detail::presence::left, std::memory_order_release);
    }

   private:
    friend class ThreadTransport;
    options options_;
    detail::geometry geometry_;
    struct mapping {
      explicit mapping(std::size_t n)
          : data(::mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)), bytes(n) {
        if (data == MAP_FAILED) {
          detail::fail(error_kind::no_memory,
                       {"cannot map ", n, " bytes for a group of threads: ", std::strerror(errno)});
        }
      }
      mapping(const mapping&) = delete;
      mapping& operator=(const mapping&) = delete;
      ~mapping() { ::munmap(data, bytes); }
      void* data;
      std::size_t bytes;
    } memory_;
    /// The objects that ranks share. They are kept here because a failing rank may end before the others have taken its
    /// object.
    std::vector<std::shared_ptr<void>> handed_;

    [[nodiscard]] detail::group_header& header() const noexcept {
      return *static_cast<detail::group_header*>(memory_.data);
    }
  };

  /// Joins as `rank`. Does not wait for the others. invalid_argument if the rank is out of range or taken.
  ThreadTransport(std::shared_ptr<group> g, int rank) : ThreadTransport(std::make_shared<state>(std::move(g), rank)) {}
  ThreadTransport(ThreadTransport&&) noexcept = default;
  ThreadTransport& operator=(ThreadTransport&& other) noexcept {
    leave();
    detail::peer_communicator::operator=(other);
    state_ = std::move(other.state_);
    return *this;
  }
  ~ThreadTransport() { leave(); }

  /// Collective: ranks with the same color form a group, ordered by key and then by rank here; see no_group. Errors:
  /// no_memory, and those of `barrier`.
  [[nodiscard]] ThreadTransport split(int color, int key) {
    const detail::split_plan plan = detail::plan_split(peers(), color, key, 0);
    std::shared_ptr<group> next;
    if (plan.rank == 0) {
      try {
        next = std::make_shared<group>(static_cast<int>(plan.members.size()), state_->owner->options_);
      } catch (const std::exception&) {
        // All ranks then get a null pointer, and throw.
      }
    }
    next = hand_out(std::move(next), plan.members.front(), operation::split);
    if (!next) detail::fail(error_kind::no_memory, {"split on ", peers().label(), ": no memory for the new group"});
    return {std::move(next), plan.rank};
  }

  /// n elements on every rank, zero at first; collective. Errors: mismatch if ranks request different sizes, no_memory.
  template <class T>
  [[nodiscard]] shared_array<T> alloc_shared(std::size_t n);

 private:
  struct state {
    state(std::shared_ptr<group> g, int rank)
        : owner(std::move(g)),
          peers(owner->header(), size(*owner), owner->geometry_, checked(rank, size(*owner)),
                "rank " + std::to_string(rank) + " of " + std::to_string(size(*owner)) + " (threads)",
                owner->options_.waiting, owner->options_.failure, {}) {
      auto expected = detail::presence::absent;
      if (!peers.mine().self.state.compare_exchange_strong(expected, detail::presence::joined)) {
        detail::fail(error_kind::invalid_argument, {"rank ", rank, " of a group of threads is taken"});
      }
      peers.set_oversubscribed(peers.size() > host().cpus);
      peers.set_costs(owner->options_.lines);
    }
    static int size(const group& g) noexcept { return static_cast<int>(g.handed_.size()); }
    static int checked(int rank, int size) {
      if (rank >= 0 && rank < size) return rank;
      detail::fail(error_kind::invalid_argument, {"rank ", rank, " is out of range; allowed: 0 to ", size - 1});
    }
    std::shared_ptr<group> owner;
    detail::peer_memory peers;
    std::uint32_t blocks = 0;
  };

  explicit ThreadTransport(std::shared_ptr<state> joined)
      : detail::peer_communicator(joined->peers), state_(std::move(joined)) {}

  void leave() noexcept {
    if (!state_) return;
    state_->peers.mine().self.state.store(detail::presence::left, std::memory_order_release);
    state_.reset();
  }

  /// Gives each rank the object of rank `from`, which may differ between ranks.
  template <class P>
  std::shared_ptr<P> hand_out(std::shared_ptr<P> mine, int from, operation kind) {
    detail::peer_memory& m = peers();
    detail::peer_memory::scope scope(m, name(kind));
    auto& handed = state_->owner->handed_;
    handed[static_cast<std::size_t>(m.rank())] = std::move(mine);
    detail::share(m, 0, kind);
    auto got = std::static_pointer_cast<P>(handed[static_cast<std::size_t>(from)]);
    detail::share(m, 0, kind);  // all have taken it
    handed[static_cast<std::size_t>(m.rank())].reset();
    scope.leave();
    return got;
  }

  std::shared_ptr<state> state_;
};

template <class T>
shared_array<T> ThreadTransport::alloc_shared(std::size_t n) {
  detail::peer_memory& m = peers();
  {
    detail::peer_memory::scope scope(m, "alloc_shared");
    detail::descriptor d;
    d.kind = operation::alloc_shared;
    d.count = n;
    d.element_bytes = sizeof(T);
    detail::agree(m, d, scope);
    scope.leave();
  }
  if (n > std::size_t{PTRDIFF_MAX} / sizeof(T) / static_cast<std::size_t>(size()) / 2) {
    detail::fail(error_kind::no_memory, {"alloc_shared on ", m.label(), ": ", n, " elements of ", sizeof(T),
                                         " bytes are more than can be addressed"});
  }
  const std::size_t stride = detail::round_up(n * sizeof(T), 4096);
  std::shared_ptr<group::mapping> memory;
  if (rank() == 0 && n != 0) {
    try {
      memory = std::make_shared<group::mapping>(stride * static_cast<std::size_t>(size()));
    } catch (const std::exception&) {
      // All ranks then get a null pointer, and throw.
    }
  }
  memory = hand_out(std::move(memory), 0, operation::alloc_shared);
  if (n == 0) return {};
  if (!memory) {
    detail::fail(error_kind::no_memory,
                 {"alloc_shared on ", m.label(), ": no memory for ", stride, " bytes on each of ", size(), " ranks"});
  }
  const detail::shared_block block{++state_->blocks, static_cast<std::byte*>(memory->data), stride, n * sizeof(T)};
  m.add_block(block);
  T* const data = reinterpret_cast<T*>(block.part(rank()));
  std::shared_ptr<void> owner(static_cast<void*>(data),
                              [memory, id = block.id, from = std::weak_ptr<state>(state_)](void*) {
                                if (const auto s = from.lock()) s->peers.remove_block(id);
                              });
  return {data, n, std::move(owner)};
}

static_assert(Transport<ThreadTransport> && Probing<ThreadTransport> && PeerMemory<ThreadTransport>);

}  // namespace hvd::inline HVD_ABI
