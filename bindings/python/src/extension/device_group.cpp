#include "device_group.hpp"

#include "group_timeline.hpp"

#include <hvd/algorithm/recursive_doubling.hpp>
#include <hvd/collective/front_door.hpp>
#include <hvd/detail/keep_for_ever.hpp>
#include <hvd/detail/wait.hpp>
#include <hvd/shared_memory/agree.hpp>

#include <algorithm>
#include <atomic>
#include <exception>
#include <span>
#include <string>
#include <utility>

namespace hvd_python {
namespace {

using hvd::detail::cuda_device;
namespace paces = hvd::detail::paces;

constexpr seconds look_every(0.1), look_in_timelines_every(0.002), ask_driver_every(5), while_lost(5);
constexpr hvd::detail::cu_result no_answer{-1};

/// Adds calls to a launch.
struct in_launch {
  hvd::detail::nccl_launch* all;
  static constexpr bool rank_ordered = true;

  template <hvd::detail::nccl_collective Call>
  void operator()(hvd::NcclTransport& /*gpus*/, const Call& call) const {
    all->add(call);
  }
};

/// Describes a call, for ranks to compare.
struct in_words {
  hvd::detail::descriptor* words;
  static constexpr bool rank_ordered = true;

  template <hvd::detail::nccl_collective Call>
  void operator()(hvd::NcclTransport& /*gpus*/, const Call& call) const {
    *words = hvd::detail::describe(call);
  }
};

hvd::error left() { return {hvd::error_kind::aborted, "this process has left the group, or is about to"}; }

}  // namespace

/// NCCL with what the group has on the GPU.
struct device_group::connected {
  explicit connected(hvd::NcclTransport transport, bool high_priority)
      : gpus(std::move(transport)), device(gpus.group()->device()), marks(device, 1) {
    const cuda_device::scope current(*device);
    stream = hvd::detail::cuda_stream(device->driver(), high_priority);
  }
  connected(const connected&) = delete;
  connected& operator=(const connected&) = delete;
  ~connected() {
    try {
      const cuda_device::scope current(*device);
      stream = {};
    } catch (const hvd::error&) {  // the driver has shut down
    }
  }
  [[nodiscard]] hvd::detail::nccl_communicator& communicator() const { return gpus.group()->communicator(); }

  hvd::NcclTransport gpus;
  std::shared_ptr<cuda_device> device;
  hvd::detail::cuda_marks marks;
  hvd::detail::cuda_stream stream;
  clock::time_point asked = clock::now();  ///< see ask_driver
  std::shared_ptr<std::atomic<hvd::detail::cu_result>> answer;
};

device_group::device_group(std::shared_ptr<group> host, hvd::nccl_options options, bool check)
    : host_(std::move(host)), options_(std::move(options)), checks_(check && host_->size() > 1), rank_(host_->rank()),
      size_(host_->size()), called_by_(static_cast<std::size_t>(size_)) {}

device_group::~device_group() { close(seconds(5)); }

// ---- the program's calls -------------------------------------------------------------------------------------------

void device_group::connect(int device, seconds timeout) {
  const std::lock_guard calling(calling_);
  throw_problem();
  if (connected_) return;
  const std::lock_guard control(control_mutex_);
  if (!control_) {
    pending here;  // with the time limit, which `split` does not have
    here.timeout = timeout;
    host_->run(here);
    hvd::any_transport made = host_->split();
    const lock held(state_);
    control_.emplace(std::move(made));
  }
  hvd::nccl_options options = options_;
  options.device = device;
  auto made = std::make_unique<connected>(hvd::NcclTransport(erase(*control_).self(), options), options.high_priority);
  const lock held(state_);
  if (closing_) throw left();
  connected_ = std::move(made);
  watch_ = std::thread([this] { watch(); });
}

hvd::detail::cu_stream device_group::stream() const noexcept { return connected_->stream.get(); }

void device_group::queue(const std::shared_ptr<device_pending>& p) {
  const std::lock_guard calling(calling_);
  throw_problem();
  if (checks_) compare(p->calls, p->timeout);
  p->number = calls_ + 1;
  {
    const lock held(state_);
    p->since = clock::now();
    in_call_ = p;
    if (asleep_) wake_.notify_one();
  }
  const std::shared_ptr<void> returns(nullptr, [this](void*) {
    const lock held(state_);
    in_call_.reset();
  });
  connected& to = *connected_;
  try {
    const cuda_device::scope current(*to.device);
    hvd::detail::nccl_group& gpus = *to.gpus.group();
    hvd::detail::refuse_capture(gpus.driver(), p->called_on, [] { return "a tensor of a collective"; });
    gpus.await_event(to.stream.get(), gpus.events()->record(p->called_on).get());
    hvd::detail::nccl_launch all = gpus.launch(to.stream.get(), hvd::name(p->calls.front().kind));
    for (const collective& c : p->calls) run_on(to.gpus, c, in_launch{&all});
    all.close();
    mark_end(*p);
  } catch (const hvd::error& e) {
    if (to.communicator().lost()) fail(e);
    throw_problem();
    throw;
  }
  calls_ = p->number;
  const lock held(state_);
  if (problem_) p->now = device_pending::state::failed;
  retire();
  in_flight_.push_back(p);
}

void device_group::mark_end(device_pending& p) {
  connected& to = *connected_;
  std::shared_ptr<void> end = to.gpus.group()->events()->record(to.stream.get());
  const hvd::detail::cuda_marks::place mark = to.marks.record(0, to.stream.get());
  const lock held(state_);
  p.end = std::move(end);
  p.mark = mark;
}

void device_group::complete(device_pending& p) {
  const std::lock_guard calling(calling_);
  const std::shared_ptr<void> ended(nullptr, [&](void*) {
    const lock held(state_);
    p.open = false;
  });
  throw_problem();
  const cuda_device::scope current(*connected_->device);
  mark_end(p);
}

bool device_group::poll(device_pending& p) {
  const lock held(state_);
  if (p.now == device_pending::state::queued) retire();
  return p.now != device_pending::state::queued;
}

void device_group::check(const device_pending& p) {
  const lock held(state_);
  if (p.now == device_pending::state::failed) throw hvd::error(*problem_);
}

bool device_group::wait(device_pending& p, std::optional<seconds> limit, interrupted by_signal) {
  const auto started = clock::now();
  for (int looks = 0; !poll(p); ++looks) {
    if (limit && clock::now() - started >= *limit) return false;
    if (by_signal != nullptr && by_signal()) throw hvd::error(hvd::error_kind::aborted, "interrupted");
    hvd::detail::nap(looks < 1000 ? paces::gpu.sleep : paces::other_process.sleep);
  }
  check(p);
  return true;
}

void device_group::make_wait(device_pending& p, const framework_stream& stream) {
  std::shared_ptr<void> end, keep;
  {
    const lock held(state_);
    if (p.now == device_pending::state::failed) throw hvd::error(*problem_);
    end = p.end;
  }
  framework_devices::instance().make_wait(stream, end.get());
  // Memory that is freed now is used again by later work of that stream.
  if (stream.handle == p.called_on) {
    const lock held(state_);
    keep = std::move(p.keep);
  }
}

void device_group::settle(interrupted by_signal) {
  std::shared_ptr<device_pending> last;
  {
    const lock held(state_);
    if (!in_flight_.empty()) last = in_flight_.back();
  }
  if (last) wait(*last, std::nullopt, by_signal);
  throw_problem();
}

void device_group::throw_problem() const {
  const lock held(state_);
  if (problem_) throw hvd::error(*problem_);
  if (closing_) throw left();
}

/// Drops the collectives that are done. The caller holds `state_`.
void device_group::retire() {
  while (!in_flight_.empty()) {
    device_pending& p = *in_flight_.front();
    if (p.open || !connected_->marks.reached(p.mark)) return;
    const bool failed = p.now == device_pending::state::failed;
    for (const collective& c : p.calls) {
      timeline_entry::ended(c, "NCCL", size_, host_->process_set(), failed, std::max(p.since, last_end_));
    }
    last_end_ = clock::now();
    if (!failed) p.now = device_pending::state::done;
    p.keep.reset();
    in_flight_.pop_front();
  }
}

void device_group::compare(const std::vector<collective>& calls, seconds timeout) {
  using namespace hvd::detail;
  const std::lock_guard control(control_mutex_);
  control_->set_timeout(timeout);
  erased_transport& ranks = erase(*control_).self();
  for (const collective& c : calls) {
    descriptor mine;
    mine.kind = c.kind;
    std::optional<hvd::error> own;
    try {
      run_on(connected_->gpus, c, in_words{&mine});
    } catch (const hvd::error& e) {
      own = e;
      mine.invalid = 1;
    }
    const bool exchanges = c.kind == hvd::operation::alltoall;
    if (exchanges) mine.count = mine.details = 0;
    try {
      agree_by_messages(ranks, mine);
    } catch (const hvd::error&) {
      if (own) throw hvd::error(*own);
      throw;
    }
    if (exchanges) compare_lengths(ranks, c);
  }
}

/// Throws on all ranks, of an alltoall, if a rank sends another length than its peer expects.
void device_group::compare_lengths(hvd::detail::erased_transport& ranks, const collective& c) const {
  const auto n = static_cast<std::size_t>(size_);
  std::vector<std::size_t> mine = c.send.empty() ? std::vector(n, c.count) : c.send;
  mine.resize(n);
  mine.insert(mine.end(), c.recv.begin(), c.recv.end());
  mine.resize(2 * n, c.count);
  std::vector<std::size_t> all(2 * n * n);
  hvd::recursive_doubling{}(ranks, hvd::allgather_call{reinterpret_cast<const std::byte*>(mine.data()),
                                                       reinterpret_cast<std::byte*>(all.data()),
                                                       hvd::partition(size_, 2 * n, sizeof(std::size_t))});
  const std::size_t unit = hvd::size_of(c.type);
  for (std::size_t from = 0; from != n; ++from) {
    for (std::size_t to = 0; to != n; ++to) {
      const std::size_t sent = all[2 * n * from + to], expected = all[2 * n * to + n + from];
      if (sent == expected) continue;
      hvd::detail::fail(hvd::error_kind::mismatch,
                        {"alltoall on rank ", rank_, " of ", size_, ": rank ", from, " sends ", sent * unit,
                         " bytes, not ", expected * unit, ", to rank ", to},
                        static_cast<int>(from));
    }
  }
}

// ---- the watch -----------------------------------------------------------------------------------------------------

void device_group::watch() {
  lock held(state_);
  while (!closing_) {
    if (in_flight_.empty() && !in_call_) {
      asleep_ = true;
      wake_.wait(held);
      asleep_ = false;
      continue;
    }
    wake_.wait_for(held, timeline_entry::active() ? look_in_timelines_every : look_every);
    retire();
    if (problem_ || (in_flight_.empty() && !in_call_)) continue;
    held.unlock();
    look();
    held.lock();
  }
}

/// The first collective that is not done; null if there is none. The caller holds `state_`.
std::shared_ptr<device_pending> device_group::oldest() const {
  return in_flight_.empty() ? in_call_ : in_flight_.front();
}

/// Ends the group if a rank is lost, or a collective does not end.
void device_group::look() {
  try {
    std::shared_ptr<device_pending> first;
    clock::time_point since;
    {
      const lock held(state_);
      first = oldest();
      if (first == nullptr) return;
      since = std::max(first->since, last_end_);
    }
    look_for_lost_ranks(first->number);
    const auto now = clock::now();
    if (first->timeout > seconds(0) && now - since >= first->timeout) {
      hvd::detail::fail(hvd::error_kind::timeout, {"Timed out: not all ranks have called ", first->what, " within ",
                                                   first->timeout.count(), " s, or a GPU has not done its part"});
    }
    const lock calling(calling_, std::try_to_lock);
    if (!calling) return;
    connected_->communicator().check();
    if (first->end) ask_driver(first->end);
  } catch (const hvd::error& e) {
    fail(e);
  } catch (const std::exception&) {  // no memory; the next look comes soon
  }
}

/// After an error of the GPU no mark is reached. So the driver is asked now and then, by another thread: the call waits
/// while a thread of the program waits in the driver, perhaps for a lost rank.
void device_group::ask_driver(const std::shared_ptr<void>& end) {
  using namespace hvd::detail;
  connected& on = *connected_;
  if (on.answer != nullptr) {
    const cu_result code = on.answer->load(std::memory_order_acquire);
    if (code == no_answer) return;
    on.answer = nullptr;
    if (code != cu_not_ready) on.device->driver().check(code, "a collective on the GPU");
  }
  if (clock::now() - on.asked < ask_driver_every) return;
  on.asked = clock::now();
  on.answer = std::make_shared<std::atomic<cu_result>>(no_answer);
  std::thread([device = on.device, answer = on.answer, end] {
    cu_result code = cu_not_ready;
    try {
      const cuda_device::scope current(*device);
      code = device->driver().event_query(end.get());
    } catch (const hvd::error&) {  // the driver has shut down
    }
    answer->store(code, std::memory_order_release);
  }).detach();
}

void device_group::look_for_lost_ranks(std::uint64_t first) {
  const lock control(control_mutex_, std::try_to_lock);
  if (!control) return;  // a thread that waits there looks by itself
  hvd::detail::erased_transport& ranks = erase(*control_).self();
  hvd::detail::peer_memory* const common = ranks.peers();
  if (common == nullptr) return ranks.check();
  for (int q = 0; q != size_; ++q) {
    common->check_alive(q, [&] { return q != rank_ && has_called(q, first); });
  }
}

/// True if a rank that has left called this collective before: then its part is done.
bool device_group::has_called(int rank, std::uint64_t number) {
  if (checks_) return true;  // or else this rank would not have come so far
  std::uint64_t& last = called_by_[static_cast<std::size_t>(rank)];
  hvd::detail::erased_transport& ranks = erase(*control_).self();
  if (last == 0 && ranks.arrived(rank)) ranks.recv(reinterpret_cast<std::byte*>(&last), sizeof last, rank);
  return last >= number;
}

/// Sends all ranks the number of collectives that this one has called.
void device_group::say_goodbye() noexcept {
  if (checks_ || calls_ == 0) return;
  try {
    const std::lock_guard control(control_mutex_);
    hvd::detail::erased_transport& ranks = erase(*control_).self();
    hvd::detail::peer_memory* const common = ranks.peers();
    for (int q = 0; common != nullptr && q != size_; ++q) {
      if (q == rank_ || common->of(q).self.state.load(std::memory_order_acquire) == hvd::detail::presence::left)
        continue;
      ranks.send(reinterpret_cast<const std::byte*>(&calls_), sizeof calls_, q);
    }
  } catch (const hvd::error&) {  // a rank is lost
  }
}

// ---- the end -------------------------------------------------------------------------------------------------------

void device_group::fail(const hvd::error& why) noexcept {
  {
    const lock held(state_);
    if (problem_) return;
    for (retire(); const auto& p : in_flight_) p->now = device_pending::state::failed;
    problem_ = why;
    if (control_) control_->abort();
  }
  if (connected_) connected_->communicator().interrupt();
}

void device_group::abort() noexcept {
  const std::lock_guard ending(ending_);
  fail(hvd::error(hvd::error_kind::aborted, "this process has aborted the group"));
}

/// Waits until no collective is in flight; returns false if that takes longer.
bool device_group::drain(seconds limit, bool failed) noexcept {
  for (const auto until = clock::now() + limit;; hvd::detail::nap(paces::gpu_end.sleep)) {
    const lock held(state_);
    retire();
    if (in_flight_.empty() && !in_call_) return true;
    if ((problem_ && !failed) || clock::now() >= until) return false;
  }
}

void device_group::close(seconds limit) noexcept {
  if (!drain(limit, false)) abort();
  {
    const lock held(state_);
    if (std::exchange(closing_, true)) return;
    wake_.notify_all();
  }
  if (watch_.joinable()) watch_.join();
  const std::lock_guard calling(calling_), ending(ending_);
  if (connected_ && problem_) {
    try {
      connected_->communicator().usable();  // it knows of the interruption from here on
    } catch (const hvd::error&) {
    }
    if (!drain(while_lost, true)) {
      connected_->communicator().keep();
      const lock held(state_);
      hvd::detail::keep_for_ever(std::move(in_flight_), std::move(connected_));
    }
  } else if (connected_) {
    say_goodbye();
  }
  connected_.reset();
  const std::lock_guard control(control_mutex_);
  const lock held(state_);
  control_.reset();
}

}  // namespace hvd_python
