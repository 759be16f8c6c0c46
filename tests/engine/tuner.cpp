// tests/engine/tuner.cpp: the autotuner's search on landscapes whose best setting is known.
#include <hvd/engine/tuner.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace {

using setting = std::vector<std::int64_t>;

/// Factors around 1, the same in every run: nearly normal with this deviation, and one in 20 far too low, as when
/// something else takes the CPU for a moment.
class noise {
 public:
  noise(std::uint64_t seed, double deviation) : state_(seed), deviation_(deviation) {}
  double next() {
    double sum = -6;
    for (int i = 0; i != 12; ++i) sum += uniform();
    return (1 + deviation_ * sum) * (uniform() < 0.05 ? 0.6 : 1);
  }
  double uniform() {  // splitmix64
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15ULL;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return static_cast<double>((z ^ (z >> 31)) >> 11) / 9007199254740992.0;
  }

 private:
  std::uint64_t state_;
  double deviation_;
};

/// Values 0, 1, ... so that a setting is its own place.
std::vector<hvd::tunable> box(const std::vector<int>& sizes, const std::vector<std::size_t>& standard) {
  std::vector<hvd::tunable> all;
  for (std::size_t i = 0; i != sizes.size(); ++i) {
    hvd::tunable& t = all.emplace_back();
    t.name = std::string(1, static_cast<char>('a' + i));
    for (int v = 0; v != sizes[i]; ++v) t.values.push_back(v);
    t.standard = standard[i];
  }
  return all;
}

struct landscape {
  std::string name;
  std::vector<int> sizes;
  std::function<double(const setting&)> height;  // above 0

  [[nodiscard]] double top() const {
    double most = 0;
    setting x(sizes.size());
    for (bool more = true; more;) {
      most = std::max(most, height(x));
      more = false;
      for (std::size_t i = 0; i != sizes.size() && !more; ++i) {
        more = ++x[i] != sizes[i];
        if (!more) x[i] = 0;
      }
    }
    return most;
  }
};

double square(double x) { return x * x; }
double at(const setting& x, std::size_t i) { return static_cast<double>(x[i]); }

std::vector<landscape> landscapes() {
  return {
      {"smooth",
       {8, 6, 4, 5, 3},
       [](const setting& x) {
         return 1 / (1 + square(at(x, 0) - 5) / 20 + square(at(x, 1) - 1) / 30 + square(at(x, 3) - 3) / 60);
       }},
      {"ridge",
       {8, 8, 4},
       [](const setting& x) {
         const double across = at(x, 0) - at(x, 1), along = at(x, 0) + at(x, 1) - 11;
         return 1 / (1 + across * across / 15 + along * along / 150 + at(x, 2) / 40);
       }},
      {"cliff",
       {8, 6, 4},
       [](const setting& x) {
         return (x[0] < 2 || x[1] == 5 ? 0.4 : 1.0) / (1 + std::abs(at(x, 0) - 3) / 10 + std::abs(at(x, 1) - 4) / 8);
       }},
      {"rugged",
       {8, 6, 4},
       [](const setting& x) {
         const double bumps = ((x[0] * 7 + x[1] * 3) % 5 == 0 ? 0.88 : 1) * (x[2] % 2 == 1 ? 0.92 : 1);
         return bumps / (1 + std::abs(at(x, 0) - 6) / 12 + std::abs(at(x, 1) - 2) / 12);
       }},
  };
}

/// Runs a search to its end; returns how many samples it took.
int run(hvd::tuner& t, const std::function<double(const setting&)>& score) {
  int samples = 0;
  for (; !t.finished(); ++samples) {
    REQUIRE(samples < 1000);
    t.record(score(t.propose()));
  }
  return samples;
}

std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const hvd::error& e) {
    CHECK(e.kind() == hvd::error::invalid_argument);
    return e.what();
  }
  return "nothing was thrown";
}

}  // namespace

TEST_CASE("the exact sequence: candidates, two sweeps, pairs") {
  hvd::tuner t({{"threshold", {10, 20, 30}, 1, false}, {"mode", {7, 8}, 0, true}, {"lanes", {1, 2}, 0, false}},
               {.warmup = 1, .budget = 36, .candidates = 3, .pairs = 6});
  CHECK(t.csv_header() == "threshold,mode,lanes,score\n");
  CHECK(t.best() == setting{20, 7, 1});
  std::string log;
  const int samples = run(t, [&](const setting& x) {
    log += t.csv_row();
    return static_cast<double>(x[0] * 10 + x[2]);
  });
  log += t.csv_row();
  const std::string pairs = "30,7,2,302\n20,7,1,201\n20,7,1,201\n30,7,2,302\n";
  CHECK(log == "20,7,1,201\n"                                                  // to warm up
               "20,7,1,201\n10,7,2,102\n30,7,1,301\n30,7,1,301\n20,7,1,201\n"  // candidates, the better two again
               "30,7,1,301\n10,7,1,101\n20,7,1,201\n30,7,1,301\n20,7,1,201\n"  // thresholds
               "30,7,1,301\n30,7,2,302\n"                                      // lanes
               "30,7,2,302\n10,7,2,102\n20,7,2,202\n30,7,2,302\n20,7,2,202\n"  // thresholds
               "30,7,2,302\n30,7,1,301\n" +                                    // lanes
                   pairs +
                   pairs + pairs + "30,7,2,302\n");
  CHECK(samples == 32);
  CHECK(t.best() == setting{30, 7, 2});
  CHECK(t.propose() == t.best());
  CHECK(t.verdict() == "the autotuner keeps threshold=30, lanes=2, which won 6 of 6 pairs, with a median score of 302 "
                       "against 201");
  CHECK(message_of([&] { t.record(1); }) == "hvd: the autotuner has finished and takes no more scores");
}

TEST_CASE("the same scores give the same search") {
  const landscape l = landscapes()[0];
  std::vector<setting> tried[2];
  for (std::vector<setting>& of : tried) {
    noise n(7, 0.05);
    hvd::tuner t(box(l.sizes, {0, 0, 0, 0, 0}));
    run(t, [&](const setting& x) {
      of.push_back(x);
      return l.height(x) * n.next();
    });
  }
  CHECK(tried[0] == tried[1]);
}

TEST_CASE("the best is found within 10 %, and what is kept is not worse than the standard") {
  constexpr int seeds = 200;
  const auto search = [](const landscape& l, double deviation, hvd::tuner_options opts) {
    const double top = l.top();
    int good = 0;
    for (std::uint64_t seed = 0; seed != seeds; ++seed) {
      noise n(seed * 1000003, deviation);
      std::vector<std::size_t> standard;
      for (const int s : l.sizes) standard.push_back(static_cast<std::size_t>(n.uniform() * s));
      hvd::tuner t(box(l.sizes, standard), opts);
      const int samples = run(t, [&](const setting& x) { return l.height(x) * n.next(); });
      CHECK(samples <= opts.warmup + opts.budget);
      good += l.height(t.best()) >= 0.9 * top;
      CHECK(l.height(t.best()) >= 0.98 * l.height(setting(standard.begin(), standard.end())));
    }
    return good;
  };
  for (const landscape& l : landscapes()) {
    CAPTURE(l.name);
    CHECK(search(l, 0, {}) >= seeds * 90 / 100);  // one sample in 20 is far off even so
    CHECK(search(l, 0.02, {}) >= seeds * 90 / 100);
    CHECK(search(l, 0.08, {}) >= seeds * 70 / 100);
    CHECK(search(l, 0.02, {.budget = 60}) >= seeds * 85 / 100);
  }
}

TEST_CASE("the standard stays where nothing is better, however much the scores vary") {
  int moved = 0, moved_by_drift = 0;
  for (std::uint64_t seed = 0; seed != 200; ++seed) {
    const std::vector<std::size_t> standard{3, 1, 0};
    const setting expected(standard.begin(), standard.end());
    noise n(seed * 7919, 0.2);
    hvd::tuner flat(box({8, 6, 4}, standard));
    run(flat, [&](const setting& /*x*/) { return n.next(); });
    moved += flat.best() != expected;
    // A machine that becomes slower and slower.
    hvd::tuner drifting(box({8, 6, 4}, standard));
    double speed = 1000;
    run(drifting, [&](const setting& /*x*/) { return speed -= 1 + 0.1 * n.uniform(); });
    moved_by_drift += drifting.best() != expected;
  }
  CHECK(moved <= 200 * 5 / 100);
  CHECK(moved_by_drift == 0);
}

TEST_CASE("one bad sample decides nothing") {
  // The best setting is caught by something else each third time.
  int sample = 0;
  hvd::tuner t(box({8}, {0}), {.pairs = 20});
  run(t, [&](const setting& x) { return ++sample % 9 == 0 ? 0.1 : static_cast<double>(x[0] + 5); });
  CHECK(t.best() == setting{7});
}

TEST_CASE("what is fixed or has one value is not searched") {
  std::vector<hvd::tunable> all = box({4, 1, 3}, {1, 0, 2});
  all[0].fixed = true;
  hvd::tuner t(all);
  run(t, [&](const setting& x) {
    CHECK(x[0] == 1);
    CHECK(x[1] == 0);
    return static_cast<double>(3 - x[2]);
  });
  CHECK(t.best() == setting{1, 0, 0});

  all[2].fixed = true;
  hvd::tuner nothing(all);
  CHECK(nothing.finished());
  CHECK(nothing.propose() == setting{1, 0, 2});
  CHECK(nothing.csv_row().empty());
  CHECK(nothing.verdict() == "the autotuner has nothing to search: all is fixed");
  CHECK(hvd::tuner({}).finished());
}

TEST_CASE("the smallest budget, no warm-up") {
  hvd::tuner t(box({8, 6}, {0, 0}), {.warmup = 0, .budget = 15, .candidates = 2, .pairs = 6});
  CHECK(run(t, [](const setting& x) { return static_cast<double>(x[0]); }) == 15);
  CHECK(t.best()[0] > 0);
}

TEST_CASE("the standard among the best ends the search at once") {
  hvd::tuner t(box({3, 3}, {1, 1}));
  CHECK(run(t, [](const setting& x) { return x == setting{1, 1} ? 2.0 : 1.0; }) < 3 + 120 - 24 + 1);
  CHECK(t.best() == setting{1, 1});
  CHECK(t.verdict() == "the autotuner found nothing better than the defaults");
  CHECK(t.csv_row() == "1,0,1\n1,1,2\n");
}

TEST_CASE("bad input is named") {
  const auto made = [](std::vector<hvd::tunable> all, hvd::tuner_options opts = {}) {
    return message_of([&] { hvd::tuner(std::move(all), opts); });
  };
  CHECK(made({{"lanes", {}, 0, false}}) == "hvd: the tunable \"lanes\" has no values");
  CHECK(made({{"lanes", {1}, 1, false}}) == "hvd: the tunable \"lanes\" has a standard that is not one of its values");
  CHECK(made({{"lanes", {1, 2, 1}, 0, false}}) == "hvd: the tunable \"lanes\" has a value twice");
  CHECK(made({{"lanes", {1}, 0, false}, {"lanes", {2}, 0, false}}) == "hvd: the tunable \"lanes\" is listed twice");
  CHECK(made({{"a,b", {1}, 0, false}}).starts_with("hvd: the tunable \"a,b\" needs a name that can be a column"));
  CHECK(made({}, {.budget = 24}) ==
        "hvd: the autotuner cannot work with 3 samples to warm up, 8 candidates, 12 pairs and a budget of 24; allowed: "
        "0 or more, 2 or more, 6 or more, and more than twice the pairs");
  CHECK(made({}, {.warmup = -1}).find("with -1 samples") != std::string::npos);
  hvd::tuner t(box({2}, {0}));
  CHECK(message_of([&] { t.record(std::nan("")); }) ==
        "hvd: the autotuner was given a score of nan; it must be a finite number");
  message_of([&] { t.record(std::numeric_limits<double>::infinity()); });
  CHECK(t.csv_row().empty());
}
