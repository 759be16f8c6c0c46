// hvd/transport/nccl/group.hpp: a communicator of NCCL with its device, its stream, and hvd's calls on them.
#pragma once

#include <hvd/call.hpp>
#include <hvd/cuda/copy.hpp>
#include <hvd/cuda/device.hpp>
#include <hvd/detail/keep_for_ever.hpp>
#include <hvd/detail/text_hash.hpp>
#include <hvd/error.hpp>
#include <hvd/shared_memory/layout.hpp>
#include <hvd/transport/nccl/collectives.hpp>
#include <hvd/transport/nccl/communicator.hpp>
#include <hvd/transport/nccl/launch.hpp>
#include <hvd/transport/nccl/launch_order.hpp>
#include <hvd/transport/nccl/meet.hpp>
#include <hvd/transport/nccl/memory.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hvd::inline HVD_ABI::detail {

/// A communicator with its device and stream. See NcclTransport.
class nccl_group {
 public:
  nccl_group(std::shared_ptr<cuda_device> device, const nccl_options& options, int rank, int size)
      : device_(std::move(device)), events_(std::make_shared<cuda_events>(device_)),
        owned_(std::make_shared<nccl_communicator>(device_, options, rank, size)), comm_(*owned_),
        votes_(device_, size), scratch_(device_, events_) {
    const cuda_device::scope current(*device_);
    stream_ = cuda_stream(device_->driver(), options.high_priority);
  }
  nccl_group(const nccl_group&) = delete;
  nccl_group& operator=(const nccl_group&) = delete;
  ~nccl_group() {
    comm_.close();
    if (comm_.stuck()) {
      keep_for_ever(std::move(stream_), std::move(token_), std::move(scratch_), std::move(votes_), std::move(copies_),
                    owned_);
      return;
    }
    try {
      const cuda_device::scope current(*device_);
      token_.reset();
      copies_.reset();
      stream_ = {};
    } catch (const error&) {  // the driver has shut down
    }
  }

  /// See NcclTransport's constructor.
  template <Bootstrap Control>
  static std::shared_ptr<nccl_group> connect(Control& control, const nccl_options& options) {
    return connect(control, options, [&] { return options.device; });
  }
  /// The same on GPU `find()`. If `find` throws on one rank, all ranks throw.
  template <Bootstrap Control, class F>
  static std::shared_ptr<nccl_group> connect(Control& control, const nccl_options& options, const F& find) {
    nccl_greeting mine;
    mine.gpu = describe({}, control.rank(), options.ranks_per_device);
    std::shared_ptr<nccl_group> group;
    const auto attempt = [&](const auto& f) {
      try {
        f();
      } catch (const error& e) {
        mine.problem = short_text<512>(sentence(e));
        mine.kind = e.kind();
      }
    };
    attempt([&] {
      const auto device = std::make_shared<cuda_device>(find());
      mine.gpu = describe({device->uuid(), device->pci()}, control.rank(), options.ranks_per_device);
      const nccl_library& nccl = get_nccl();
      mine.nccl = nccl_search::result().version;
      mine.instances_apart = std::getenv("NCCL_HOSTID") != nullptr;
      allow_sharing(options);
      connect_at_the_start();
      group = std::make_shared<nccl_group>(device, options, control.rank(), control.size());
      group->load();
      if (control.rank() == 0) {
        const nccl_result code = nccl.unique_id(&mine.id);
        if (code != nccl_success) fail(nccl_error_kind(code), {"ncclGetUniqueId failed: ", nccl.error_text(code)});
      }
    });
    const std::vector<nccl_greeting> all = exchange_greetings(control, mine);
    check_greetings(all);
    const nccl_unique_id& id = all.front().id;
    if (group) group->id_ = text_hash({reinterpret_cast<const char*>(&id), sizeof id});
    attempt([&] {
      const cuda_device::scope current(*group->device_);
      group->comm_.connect(all.front().id, [&] {
        if constexpr (requires { control.check(); }) control.check();
      });
    });
    // Wait for all ranks: otherwise one could start a collective while others still connect, or have failed to.
    check_problems(exchange_greetings(control, mine));
    return group;
  }

  [[nodiscard]] int rank() const noexcept { return comm_.rank(); }
  [[nodiscard]] int size() const noexcept { return comm_.size(); }
  /// A number that no other group has; the same on all ranks.
  [[nodiscard]] std::uint64_t id() const noexcept { return id_; }
  [[nodiscard]] launch_order& order() const { return launch_order::of(device_->ordinal()); }
  [[nodiscard]] const std::shared_ptr<cuda_device>& device() const noexcept { return device_; }
  [[nodiscard]] const std::shared_ptr<cuda_events>& events() const noexcept { return events_; }
  [[nodiscard]] nccl_communicator& communicator() noexcept { return comm_; }
  [[nodiscard]] const cuda_driver& driver() const noexcept { return device_->driver(); }
  [[nodiscard]] nccl_average average() const noexcept { return comm_.options().average; }

  /// The kernels, once `load` has loaded them.
  [[nodiscard]] cuda_copies& copies() { return *copies_; }
  /// Loads the kernels. Called before ranks exchange their errors: a load failure must be reported to all ranks, and
  /// loading during a collective can deadlock.
  void load() {
    const cuda_device::scope current(*device_);
    copies_.emplace(driver());
  }

  // ---- calls ----------------------------------------------------------------------------------------------------

  /// Calls that NCCL launches together on a stream; see nccl_launch. Within a scope of the device.
  [[nodiscard]] nccl_launch launch(cu_stream stream, std::string_view what) {
    if (stream != stream_.get()) check_stream(driver(), stream, [&] { return joined({what, " on ", comm_.label()}); });
    return {comm_, *copies_, scratch_, stream, what};
  }
  /// Queues a call on a stream.
  template <nccl_collective Call>
  void queue(const Call& c, cu_stream stream) {
    const cuda_device::scope current(*device_);
    nccl_launch one = launch(stream, name(Call::kind));
    one.add(c);
    one.close();
  }
  /// The same on this group's stream, and waits.
  template <nccl_collective Call>
  void run(const Call& c) {
    queue(c, stream_.get());
    wait(name(Call::kind));
  }

  void send(const std::byte* data, std::size_t bytes, int peer) {
    transfer(operation::send, data, bytes, [&](nccl_group_call& g) { g.send(data, bytes, peer); });
  }
  void recv(std::byte* data, std::size_t bytes, int peer) {
    transfer(operation::recv, data, bytes, [&](nccl_group_call& g) { g.recv(data, bytes, peer); });
  }

  /// See NcclTransport::copy_to_device, copy_to_host.
  void upload(std::byte* to, std::span<const std::byte> from) {
    if (from.empty()) return;
    const cuda_device::scope current(*device_);
    check_device_memory(*device_, "copy_to_device", comm_.label(), "output", to, from.size());
    driver().check(driver().copy_to_device(to_device(to), from.data(), from.size(), stream_.get()), "cuMemcpyHtoD");
    wait("copy_to_device");
  }
  void download(std::span<std::byte> to, const std::byte* from) {
    if (to.empty()) return;
    const cuda_device::scope current(*device_);
    check_device_memory(*device_, "copy_to_host", comm_.label(), "input", from, to.size());
    driver().check(driver().copy_to_host(to.data(), to_device(from), to.size(), stream_.get()), "cuMemcpyDtoH");
    wait("copy_to_host");
  }

  void barrier() {
    const cuda_device::scope current(*device_);
    comm_.usable();
    if (!token_) token_ = cuda_memory(device_, 1);
    driver().check(driver().fill_bytes(to_device(token_.get()), 0, 1, stream_.get()), "cuMemsetD8Async");
    const nccl_reduction largest{.type = nccl_uint8, .op = nccl_max};
    issue("barrier", stream_.get(), [&](nccl_group_call& g) {
      g.add(allreduce_call{token_.get(), token_.get(), 1, reduction()}, largest);
    });
    wait("barrier");
  }

  [[nodiscard]] std::shared_ptr<nccl_group> split(int color, int key) {
    // Ranks exchange all colors and keys: NCCL takes no negative color, and the ranks of the new group must be known.
    struct wish {
      int color, key;
    };
    const wish mine{color, key};
    std::vector<wish> all(static_cast<std::size_t>(size()));
    share("split", &mine, all.data(), sizeof mine);
    std::vector<int> colors, members;
    for (const wish& w : all) colors.push_back(w.color);
    const int index = group_number(colors, rank());
    for (int r = 0; r != size(); ++r) {
      if (same_group(color, rank(), colors[static_cast<std::size_t>(r)], r)) members.push_back(r);
    }
    std::stable_sort(members.begin(), members.end(), [&](int a, int b) {
      return all[static_cast<std::size_t>(a)].key < all[static_cast<std::size_t>(b)].key;
    });
    const auto place = static_cast<int>(std::find(members.begin(), members.end(), rank()) - members.begin());
    ++splits_;
    auto part = agreed("split", [&] {
      auto made = std::make_shared<nccl_group>(device_, comm_.options(), place, static_cast<int>(members.size()));
      made->load();
      made->id_ = text_hash(joined({id_, " ", splits_, " ", index}));
      return made;
    });
    keeping(part, [&] { part->comm_.connect(comm_, index, key); });
    barrier();
    return part;
  }

  /// See NcclTransport::without.
  [[nodiscard]] std::shared_ptr<nccl_group> without(std::vector<int> lost) {
    std::sort(lost.begin(), lost.end());
    for (std::size_t i = 0; i != lost.size(); ++i) {
      const bool twice = i != 0 && lost[i] == lost[i - 1];
      if (twice || lost[i] < 0 || lost[i] >= size() || lost[i] == rank()) {
        fail(error_kind::invalid_argument, {"without on ", comm_.label(), ": rank ", lost[i],
                                            twice ? " is named twice" : " cannot be left out; allowed: other ranks"});
      }
    }
    const auto before = std::lower_bound(lost.begin(), lost.end(), rank()) - lost.begin();
    auto left = std::make_shared<nccl_group>(device_, comm_.options(), rank() - static_cast<int>(before),
                                             size() - static_cast<int>(lost.size()));
    left->load();
    left->id_ = text_hash(joined({id_, " ", ++splits_, " without"}));
    keeping(left, [&] { left->comm_.connect(comm_, std::move(lost)); });
    return left;
  }

  /// See NcclTransport::alloc_shared; `flags` as in nccl_growth.
  [[nodiscard]] std::shared_ptr<std::byte> allocate(std::size_t n, std::size_t element_bytes, int flags) {
    if (n == 0) return nullptr;
    if (n > std::size_t{PTRDIFF_MAX} / 2 / element_bytes) {
      fail(error_kind::no_memory, {"alloc_shared on ", comm_.label(), ": ", n, " elements of ", element_bytes,
                                   " bytes are more than can be addressed"});
    }
    const std::size_t bytes = round_up(n * element_bytes, nccl_window_alignment);
    const cuda_device::scope current(*device_);
    nccl_growth growth = grow(bytes, stream_.get(), flags);
    keeping(growth.memory(),
            [&] { comm_.await("alloc_shared", comm_.options().timeout, [&] { return growth.advance(); }); });
    return growth.memory();
  }

  // ---- for fusion: within a scope of the device -------------------------------------------------------------------

  /// See check_device_memory.
  void check_memory(operation kind, const char* what, const void* address, std::size_t bytes) const {
    check_device_memory(*device_, name(kind), comm_.label(), what, address, bytes);
  }

  /// Memory for all ranks; see nccl_growth, which this group must outlive.
  [[nodiscard]] nccl_growth grow(std::size_t bytes, cu_stream stream, int flags) {
    return {owned_, events_, votes_, stream, bytes, flags};
  }

  void copy_on_device(std::byte* to, const std::byte* from, std::size_t bytes, cu_stream stream) const {
    driver().check(driver().copy_on_device(to_device(to), to_device(from), bytes, stream), "cuMemcpyDtoDAsync");
  }
  void await_event(cu_stream stream, void* event) const {
    if (event != nullptr) driver().check(driver().stream_wait(stream, event, 0), "cuStreamWaitEvent");
  }

 private:
  /// Calls f. If NCCL is stuck after an error, a thread of NCCL may still write to `kept`.
  template <class F>
  void keeping(const std::shared_ptr<void>& kept, const F& f) {
    const cuda_device::scope current(*device_);
    try {
      f();
    } catch (const error&) {
      if (comm_.stuck()) keep_for_ever(kept);
      throw;
    }
  }
  /// Returns the result of f if f succeeds on all ranks; otherwise all ranks throw.
  template <class F>
  auto agreed(std::string_view what, const F& f) -> decltype(f()) {
    decltype(f()) made{};
    std::optional<error> problem;
    try {
      made = f();
    } catch (const error& e) {
      problem.emplace(e);
    }
    const unsigned char mine = problem ? 1 : 0;
    std::vector<unsigned char> all(static_cast<std::size_t>(size()));
    share(what, &mine, all.data(), sizeof mine);
    if (problem) throw error(*problem);
    const auto other = static_cast<int>(std::find(all.begin(), all.end(), 1) - all.begin());
    if (other == size()) return made;
    fail(error_kind::aborted, {what, " on ", comm_.label(), ": rank ", other, " failed (see its own error)"}, other);
  }

  /// Queues the calls of NCCL that f adds to a group.
  template <class F>
  void issue(std::string_view what, cu_stream stream, const F& f) {
    nccl_group_call g(comm_, stream, what);
    f(g);
    if (!comm_.abort_if_lost([&] { return g.close(); })) comm_.await_ready(what, comm_.options().timeout);
  }
  template <class F>
  void transfer(operation kind, const void* data, std::size_t bytes, const F& f) {
    const cuda_device::scope current(*device_);
    check_memory(kind, "buffer", data, bytes);
    issue(name(kind), stream_.get(), f);
    wait(name(kind));
  }
  /// Waits until all work on this group's stream is done.
  void wait(std::string_view what) {
    const cuda_device::scope current(*device_);
    const auto done = events_->record(stream_.get());
    comm_.await(what, comm_.options().timeout, [&] {
      const cu_result code = driver().event_query(done.get());
      if (code != cu_not_ready) driver().check(code, "a collective on the GPU");
      return code != cu_not_ready;
    });
  }

  /// Gathers `bytes` bytes of every rank, through the device, for the operation `what`; waits.
  void share(std::string_view what, const void* mine, void* all, std::size_t bytes) {
    const cuda_device::scope current(*device_);
    const std::size_t whole = bytes * static_cast<std::size_t>(size());
    const auto there = scratch_.take(whole);  // freeing it would wait for the device
    std::byte* const own = there.get() + bytes * static_cast<std::size_t>(rank());
    driver().check(driver().copy_to_device(to_device(own), mine, bytes, stream_.get()), "cuMemcpyHtoDAsync");
    issue(what, stream_.get(), [&](nccl_group_call& g) {
      g.add(allgather_call{own, there.get(), partition(size(), bytes, 1)});
    });
    wait(what);  // with a deadline, which a copy to the host does not have
    driver().check(driver().copy_to_host(all, to_device(there.get()), whole, stream_.get()), "cuMemcpyDtoHAsync");
    scratch_.give_back(there, stream_.get());
    wait(what);
  }

  std::shared_ptr<cuda_device> device_;
  std::shared_ptr<cuda_events> events_;
  std::shared_ptr<nccl_communicator> owned_;
  nccl_communicator& comm_;
  std::uint64_t id_ = 0, splits_ = 0;
  nccl_votes votes_;
  cuda_stream stream_;
  std::optional<cuda_copies> copies_;
  std::shared_ptr<std::byte> token_;
  nccl_scratch scratch_;
};

}  // namespace hvd::inline HVD_ABI::detail
