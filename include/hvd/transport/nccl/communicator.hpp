// hvd/transport/nccl/communicator.hpp: a communicator of NCCL with hvd's deadlines: how it is made, and its calls.
#pragma once

#include <hvd/detail/wait.hpp>
#include <hvd/error.hpp>
#include <hvd/transport/nccl/handle.hpp>

#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hvd::inline HVD_ABI::detail {

/// A communicator with hvd's deadlines: how it is made, and its calls.
class nccl_communicator : public nccl_handle {
 public:
  using nccl_handle::nccl_handle;

  /// Connects the ranks; within a scope of the device, like all calls of NCCL. `look()` throws if a rank is lost.
  template <class Look>
  void connect(const nccl_unique_id& id, const Look& look) {
    start("connecting", nullptr, look, [id, size = size_, rank = rank_, init = nccl_.comm_init](auto* made, auto* how) {
      return init(made, size, id, rank, how);
    });
  }
  /// The same as a part of another communicator. `color` is not negative.
  void connect(nccl_communicator& whole, int color, int key) {
    start(
        "split", &whole, [] {},
        [from = whole.get(), color, key, split = nccl_.comm_split](auto* made, auto* how) {
          return split(from, color, key, made, how);
        });
  }
  /// The same with the remaining ranks of another communicator. Calls under way there end, with unspecified outputs.
  void connect(nccl_communicator& whole, std::vector<int> lost) {
    if (nccl_.comm_shrink != nullptr && whole.comm_ != nullptr) {
      if (!whole.lost_) {
        whole.lost_.emplace(error_kind::aborted, joined({"the ranks of ", whole.label(), " go on without others"}));
      }
      if (nccl_.comm_revoke != nullptr) whole.stop();
    }
    if (nccl_.comm_shrink == nullptr || whole.comm_ == nullptr) {
      fail(error_kind::unsupported,
           {"without: NCCL ", nccl_version_text(nccl_search::result().version),
            whole.comm_ == nullptr ? " has aborted the communicator" : " cannot leave ranks out (2.27 can)", remedy});
    }
    auto shrink = [from = whole.comm_, lost, flags = whole.revoked_ ? 0 : nccl_shrink_abort,
                   shrink = nccl_.comm_shrink](auto* made, auto* how) mutable {
      return shrink(from, lost.data(), static_cast<int>(lost.size()), made, how, flags);
    };
    const auto late = [&] {
      return error(error_kind::timeout, joined({"without on ", label(), ": the remaining ranks did not arrive within ",
                                                options_.start_timeout.count(), " s"}));
    };
    if (blocking()) {
      try {
        return start(
            "without", &whole, [] {}, shrink);
      } catch (const error& e) {
        const bool timed_out = e.kind() == error_kind::timeout;
        lost_.emplace(timed_out ? late() : error(e.kind(), joined({sentence(e), remedy})));
      }
    } else {
      nccl_config config = configuration();
      const nccl_result code = shrink(&comm_, &config);
      // A thread of NCCL writes `comm_` before the state of the whole communicator shows that it is done.
      nccl_result state = code == nccl_success ? nccl_in_progress : code;
      const auto until = clock::now() + options_.start_timeout;
      backoff rest(paces::gpu_end);
      for (; state == nccl_in_progress && clock::now() < until; state = whole.state()) rest.step();
      if (state == nccl_success) return finish_start("without", [] {});
      const bool timed_out = state == nccl_in_progress;
      lost_.emplace(timed_out ? late() : error(nccl_error_kind(state), joined({whole.text("without", state), remedy})));
    }
    whole.abort();  // joins a thread of NCCL
    throw again(*lost_);
  }

  /// Handles the result of a call of NCCL. True if its work is on the stream; false if `ready` must be polled before
  /// anything else is called. Throws if the call has failed.
  [[nodiscard]] bool queued(std::string_view what, nccl_result code) {
    if (code == nccl_success) [[likely]]
      return true;
    if (code != nccl_in_progress) refuse(what, code);
    if (!joins_) return ready(what);
    await_ready(what, options_.timeout);  // another thread must not go on with it
    return true;
  }
  /// The same for calls other than collectives: some versions return success although one of their threads still works
  /// on it.
  void begun(std::string_view what, nccl_result code) {
    if (code != nccl_success && code != nccl_in_progress) refuse(what, code);
  }
  /// True if the work of all calls is on its streams.
  [[nodiscard]] bool ready(std::string_view what) {
    usable();
    const nccl_result state = this->state();
    if (state == nccl_success) return true;
    if (state == nccl_in_progress) return false;
    lose(what, state);
  }
  /// Waits for `ready`. Errors: timeout.
  void await_ready(std::string_view what, nccl_options::seconds limit) {
    await(what, limit, [&] { return ready(what); });
  }
  /// Throws if the communicator has failed.
  void check() { static_cast<void>(ready("a collective")); }

  /// Polls until `done`, and for errors; yields the CPU first, and then sleeps. Errors: timeout, and those of `check`;
  /// after either, no work is under way.
  template <class Done>
  void await(std::string_view what, nccl_options::seconds limit, const Done& done) {
    abort_if_lost([&] {
      const auto start = clock::now();
      backoff rest(paces::gpu);
      for (int looks = 0; !done(); ++looks) {
        if (looks % 16 == 0) {
          static_cast<void>(ready(what));
          if (limit.count() > 0 && clock::now() - start >= limit) out_of_time(what, limit);
        }
        rest.step();
      }
      return true;
    });
  }
  /// Returns the result of f. If the communicator is lost in f, aborts it: work under way would never end, and freeing
  /// memory or waiting for a stream would hang. (An engine aborts by itself; until then, a failed call does not count
  /// as complete.)
  template <class F>
  bool abort_if_lost(const F& f) {
    try {
      return f();
    } catch (const error&) {
      if (lost_) stop();
      throw;
    }
  }
  /// Makes every later call throw. Called if a group of calls was launched only in part, so that other ranks wait for
  /// the rest.
  void condemn(std::string_view what) noexcept {
    try {
      if (!lost_) lost_.emplace(error_kind::aborted, joined({what, " on ", label(), " was begun and not completed"}));
    } catch (const std::exception&) {  // no memory for the sentence
      abort();
    }
  }

 private:
  static constexpr std::string_view remedy = "; make a new NcclTransport over a transport of the remaining ranks";

  [[nodiscard]] nccl_config configuration() const noexcept {
    nccl_config config;
    config.blocking = blocking() ? 1 : 0;
    config.comm_name = "hvd";
    if (options_.min_ctas > 0) config.min_ctas = options_.min_ctas;
    if (options_.max_ctas > 0) config.max_ctas = options_.max_ctas;
    if (!options_.network.empty()) config.net_name = options_.network.c_str();
    return config;
  }
  /// Makes the communicator by `call(&made, &config)`, of itself or of another communicator.
  template <class Look, class Call>
  void start(std::string_view what, nccl_communicator* from, const Look& look, Call call) {
    nccl_config config = configuration();
    nccl_communicator& caller = from != nullptr ? *from : *this;
    if (!blocking()) {
      // NCCL makes a part in a thread of the whole communicator, which writes `comm_` when it is done.
      caller.begun(what, call(&comm_, &config));
      if (from != nullptr) from->await_ready(what, options_.start_timeout);  // ends it if it fails: joins the thread
      return finish_start(what, look);
    }
    const auto made = std::make_shared<nccl_comm>(nullptr);
    std::optional<nccl_result> code;
    try {
      code = detail::bounded(
          device_, options_.start_timeout, [=]() mutable { return call(made.get(), &config); }, look);
      if (!code) out_of_time(what, options_.start_timeout);
    } catch (const error& e) {
      if (!lost_) lost_.emplace(e);
      if (from != nullptr) {  // a thread may use it for ever
        if (!from->lost_) from->lost_.emplace(e);
        from->stop();
        from->keep();
        from->comm_ = nullptr;
      }
      throw;
    }
    if (*code != nccl_success) throw error(nccl_error_kind(*code), text(what, *code));
    comm_ = *made;
    connected_ = true;
  }
  template <class Look>
  void finish_start(std::string_view what, const Look& look) {
    if (comm_ == nullptr) fail(error_kind::system, {"NCCL gave ", label(), " no communicator"});
    try {
      await(what, options_.start_timeout, [&] {
        look();
        return ready(what);
      });
    } catch (const error&) {
      abort();  // also after an error of `look`
      throw;
    }
    connected_ = true;
  }
  /// Throws an error of one call, which NCCL may treat as an error of the communicator.
  [[noreturn]] void refuse(std::string_view what, nccl_result code) {
    if (interrupted_.load() != cause::none) usable(what);
    nccl_result state = nccl_success;
    if (comm_ != nullptr && nccl_.comm_async_error(comm_, &state) != nccl_success) state = code;
    if (state != nccl_success && state != nccl_in_progress) lose(what, code);
    throw error(nccl_error_kind(code), text(what, code));
  }
  /// Throws an error that ends the communicator.
  [[noreturn]] void lose(std::string_view what, nccl_result code) {
    lost_.emplace(nccl_error_kind(code), text(what, code));
    throw again(*lost_);
  }
};

}  // namespace hvd::inline HVD_ABI::detail
