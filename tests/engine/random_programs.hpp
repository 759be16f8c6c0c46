// tests/engine/random_programs.hpp: programs at random, which all ranks run, with what must come of them.
#pragma once

#include <engine/operations.hpp>
#include <transport/launchers.hpp>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <unistd.h>

namespace hvd::test {

/// How many programs: what HVD_TEST_SEEDS says, for each kind of them.
inline std::uint64_t seeds(std::uint64_t usual) {
  const char* const given = std::getenv("HVD_TEST_SEEDS");
  if (given != nullptr) return std::strtoull(given, nullptr, 10);
  return sanitized ? usual / 10 + 1 : usual;
}

/// Ends this process, and says which seed it was, if a program takes longer than any should.
class watchdog {
 public:
  explicit watchdog(std::uint64_t seed) {
    std::snprintf(text(), 64, "a program hangs; its seed is %llu\n", static_cast<unsigned long long>(seed));
    std::signal(SIGALRM, [](int) {
      [[maybe_unused]] const auto written = ::write(2, text(), std::char_traits<char>::length(text()));
      std::signal(SIGABRT, SIG_DFL);
      std::abort();
    });
    ::alarm(50);
  }
  watchdog(const watchdog&) = delete;
  watchdog& operator=(const watchdog&) = delete;
  ~watchdog() { ::alarm(0); }

 private:
  static char* text() {
    static char buffer[64];
    return buffer;
  }
};

class dice {
 public:
  explicit dice(std::uint64_t seed) : random_(seed) {}
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(random_() % n); }
  bool one_in(std::size_t n) { return below(n) == 0; }
  template <class V>
  void shuffle(V& values) {
    std::shuffle(values.begin(), values.end(), random_);
  }

 private:
  std::mt19937_64 random_;
};

/// One program on one rank. `real_time`: ranks run at the same time; else whoever waits makes progress, and so only in
/// the set of all ranks.
template <Transport T>
class random_program {
 public:
  random_program(T& comm, std::uint64_t seed, bool real_time)
      : rank_(comm.rank()), size_(comm.size()), seed_(seed), real_time_(real_time), common_(seed),
        own_(mix({seed, 1, static_cast<std::uint64_t>(rank_)})), engine_(comm, options()) {
    sets_.push_back({0, std::vector<int>(static_cast<std::size_t>(size_))});
    std::iota(sets_[0].ranks.begin(), sets_[0].ranks.end(), 0);
  }

  void operator()() {
    for (std::size_t phases = 2 + common_.below(5); phases != 0; --phases, ++phase_) {
      const std::size_t what = common_.below(8);
      if (what == 0) {
        join();
      } else if (what == 1 && real_time_) {
        change_sets();
      } else {
        operate();
      }
    }
  }

 private:
  struct set {
    int id;
    std::vector<int> ranks;
    [[nodiscard]] int size() const { return static_cast<int>(ranks.size()); }
    [[nodiscard]] int place(int rank) const {
      const auto at = std::find(ranks.begin(), ranks.end(), rank);
      return at == ranks.end() ? -1 : static_cast<int>(at - ranks.begin());
    }
  };
  struct submitted {
    attempt what;
    int set;
    bool spoiled;  // by one rank, which means another thing
  };

  engine_options options() {
    engine_options o;
    o.thread = real_time_;
    constexpr std::size_t thresholds[] = {0, 64, 2000, std::size_t{128} << 20}, capacities[] = {1, 3, 1024};
    o.fusion_threshold = thresholds[common_.below(std::size(thresholds))];
    o.cache_capacity = capacities[common_.below(std::size(capacities))];
    o.groups_alone = common_.one_in(2);
    return o;
  }
  void dawdle() {
    if (!real_time_) return;
    if (own_.one_in(5)) std::this_thread::yield();
    if (own_.one_in(30)) std::this_thread::sleep_for(std::chrono::microseconds(own_.below(200)));
  }

  void operate() {
    std::vector<submitted> mine;
    std::vector<std::pair<int, std::string>> taken;
    for (std::size_t i = 0, n = 1 + common_.below(12); i != n; ++i) {
      const set& s = sets_[common_.below(sets_.size())];
      const std::string name = "t" + std::to_string(common_.below(15));
      const std::uint64_t seed = mix({seed_, phase_, i});
      const bool spoiled = common_.one_in(12) && s.size() > 1;
      const auto odd = static_cast<int>(common_.below(static_cast<std::size_t>(s.size())));
      if (std::find(taken.begin(), taken.end(), std::pair(s.id, name)) != taken.end()) continue;
      taken.emplace_back(s.id, name);
      const int place = s.place(rank_);
      if (place < 0) continue;
      // Every other tensor changes its signature in every phase; the others are known.
      task t = random_task(i % 2 == 0 ? seed : mix({seed_, i, static_cast<std::uint64_t>(s.id)}), s.size(), name, 300);
      t.seed = seed;
      if (spoiled && place == odd) {
        t = {.kind = t.kind == operation::allreduce ? operation::broadcast : operation::allreduce, .name = name};
      }
      mine.push_back({attempt(t, place, s.size()), s.id, spoiled});
    }
    own_.shuffle(mine);
    for (submitted& s : mine) {
      dawdle();
      s.what.submit(engine_, s.set);
    }
    own_.shuffle(mine);
    for (const submitted& s : mine) {
      dawdle();
      if (!s.spoiled) {
        s.what.finish();
        continue;
      }
      const std::string why = s.what.failure();
      require(why.starts_with("mismatch: ") && why.find('"' + s.what.what().name + '"') != std::string::npos,
              [&] { return "a mismatch ended with: " + why; });
    }
  }

  void join() {
    std::vector<std::size_t> batches;
    for (int r = 0; r != size_; ++r) batches.push_back(common_.below(4));
    const std::size_t most = *std::max_element(batches.begin(), batches.end());
    for (std::size_t b = 0; b != batches[static_cast<std::size_t>(rank_)]; ++b) {
      std::vector<int> absent;
      for (int r = 0; r != size_; ++r) {
        if (batches[static_cast<std::size_t>(r)] <= b) absent.push_back(r);
      }
      std::vector<attempt> all;
      constexpr reduce_op ops[] = {reduce_op::sum, reduce_op::average, reduce_op::adasum};
      for (std::size_t i = 0; i != 4; ++i) {
        const std::uint64_t seed = mix({seed_, phase_, b, i});
        all.emplace_back(task{.name = "j" + std::to_string(i), .rows = seed % 40, .op = ops[i % 3], .seed = seed},
                         rank_, size_);
      }
      own_.shuffle(all);
      for (attempt& a : all) {
        dawdle();
        a.submit(engine_);
      }
      for (const attempt& a : all) a.finish(absent);
    }
    dawdle();
    const handle h = engine_.join();
    h.wait(long_enough);
    const int last = h.last_joined();
    require(last >= 0 && last < size_ && batches[static_cast<std::size_t>(last)] == most, "a wrong last rank");
  }

  void change_sets() {
    if (sets_.size() > 1 && common_.one_in(2)) {
      const auto which = static_cast<std::ptrdiff_t>(1 + common_.below(sets_.size() - 1));
      engine_.remove_process_set(sets_[static_cast<std::size_t>(which)].id);
      sets_.erase(sets_.begin() + which);
      return;
    }
    std::vector<int> ranks = sets_[0].ranks;
    common_.shuffle(ranks);
    ranks.resize(1 + common_.below(ranks.size()));
    const int id = engine_.add_process_set(ranks);
    require(id == ++last_set_, "a wrong number of a process set");
    sets_.push_back({id, ranks});
  }

  int rank_, size_;
  std::uint64_t seed_, phase_ = 0;
  bool real_time_;
  dice common_, own_;
  Engine<T> engine_;
  std::vector<set> sets_;
  int last_set_ = 0;
};

/// Runs the program of a seed; what goes wrong names it.
template <Transport T>
void run_program(T& comm, std::uint64_t seed, bool real_time) {
  try {
    random_program<T>(comm, seed, real_time)();
  } catch (const std::exception& e) {
    throw requirement_failed("seed " + std::to_string(seed) + ": " + e.what());
  }
}

}  // namespace hvd::test
