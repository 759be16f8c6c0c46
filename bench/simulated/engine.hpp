// bench/simulated/engine.hpp: the cost of hvd::Engine beyond its collectives, on simulated ranks.
#pragma once

#include <hvd/engine.hpp>
#include <hvd/engine/negotiation.hpp>
#include <hvd/fusion.hpp>
#include <hvd/transport/simulated.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <numeric>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace hvd::bench {

/// Every rank submits `tensors` allreduces of `bytes` each (a multiple of 4), in an order of its own, and waits for
/// all.
struct engine_case {
  int ranks = 0;
  int tensors = 0;
  std::size_t bytes = 0;
};

/// A part of a simulation: how long it took the slowest rank, and the messages of all.
struct engine_cost {
  double seconds = 0;
  simulation::traffic inside{}, between{};
};

struct engine_costs {
  engine_cost start;                   ///< the engine's constructor
  engine_cost first;                   ///< a step whose names are new
  engine_cost later;                   ///< a step whose names are known
  engine_cost data;                    ///< the same tensors by FusionBuffer, without an engine
  std::size_t announcement_bytes = 0;  ///< in which ranks tell each other the new names
};

/// The sums of one rank in one step: whole numbers so small that they are exact in any order.
class verified_tensors {
 public:
  verified_tensors(const engine_case& c, int rank, int step)
      : c_(c), each_(c.bytes / sizeof(float)), rank_(rank), step_(step),
        values_(each_ * static_cast<std::size_t>(c.tensors)) {
    for (int t = 0; t != c.tensors; ++t) {
      for (std::size_t i = 0; i != each_; ++i) (*this)[t][i] = static_cast<float>(by_rank(rank, t) + by_element(i));
    }
  }
  static std::string name(int tensor) { return "layers." + std::to_string(tensor) + ".weight"; }
  [[nodiscard]] std::span<float> operator[](int tensor) {
    return std::span(values_).subspan(each_ * static_cast<std::size_t>(tensor), each_);
  }
  /// Throws if they are not the sums over all ranks.
  void verify() {
    for (int t = 0; t != c_.tensors; ++t) {
      int sum = c_.ranks / 7 * (0 + 1 + 2 + 3 + 4 + 5 + 6);
      for (int r = 0; r != c_.ranks % 7; ++r) sum += by_rank(r, t);
      for (std::size_t i = 0; i != each_; ++i) {
        const float value = (*this)[t][i], right = static_cast<float>(sum + c_.ranks * by_element(i));
        if (value == right) continue;
        throw std::runtime_error("rank " + std::to_string(rank_) + ", step " + std::to_string(step_) + ", element " +
                                 std::to_string(i) + " of " + name(t) + ": " + std::to_string(value) +
                                 ", but the sum is " + std::to_string(right));
      }
    }
  }

 private:
  [[nodiscard]] int by_rank(int rank, int tensor) const noexcept { return (rank + tensor + step_) % 7; }
  [[nodiscard]] static int by_element(std::size_t i) noexcept { return static_cast<int>(i % 5); }

  const engine_case& c_;
  std::size_t each_;
  int rank_, step_;
  std::vector<float> values_;
};

/// Runs `steps` steps by an engine. `seconds` gets those of the constructor and of each step; messages are those of
/// all.
inline simulation with_engine(const engine_case& c, const network& net, int steps, std::vector<double>& seconds) {
  seconds.assign(static_cast<std::size_t>(steps) + 1, 0.0);
  return simulate(c.ranks, net, [&](SimulatedTransport& comm) {
    const auto took = [&](int part, double begin) {
      double& longest = seconds[static_cast<std::size_t>(part)];
      longest = std::max(longest, comm.now() - begin);
    };
    engine_options opts;  // not those of the environment: every run is the same
    opts.thread = opts.watch = false;
    Engine engine(comm, opts);
    took(0, 0);
    std::mt19937 random(static_cast<unsigned>(comm.rank()));
    std::vector<int> order(static_cast<std::size_t>(c.tensors));
    std::iota(order.begin(), order.end(), 0);
    for (int step = 0; step != steps; ++step) {
      verified_tensors mine(c, comm.rank(), step);
      for (std::size_t i = order.size(); i-- > 1;) std::swap(order[i], order[random() % (i + 1)]);
      const double begin = 10.0 * (step + 1);  // the same on all ranks, and long after the step before
      comm.spend(begin - comm.now());
      std::vector<handle> handles;
      for (const int t : order) handles.push_back(engine.allreduce(verified_tensors::name(t), mine[t]));
      for (const handle& h : handles) h.wait();
      took(step + 1, begin);
      mine.verify();
    }
  });
}

/// The tensors of a step in an order that all ranks know, so that nothing has to be agreed on.
inline engine_cost without_engine(const engine_case& c, const network& net) {
  const simulation s = simulate(c.ranks, net, [&](SimulatedTransport& comm) {
    verified_tensors mine(c, comm.rank(), 0);
    std::vector<fused> tensors;
    for (int t = 0; t != c.tensors; ++t) {
      const std::span<std::byte> bytes = std::as_writable_bytes(mine[t]);
      tensors.push_back({.in = bytes.data(), .out = bytes.data(), .count = mine[t].size(), .type = dtype::float32});
    }
    FusionBuffer<SimulatedTransport>(comm).allreduce(tensors);
    mine.verify();
  });
  return {s.seconds, s.inside, s.between};
}

/// Bytes of the announcement of one rank, and of many together, which announce the same.
inline std::size_t announcement_bytes(const engine_case& c) {
  detail::announcements all;
  for (int t = 0; t != c.tensors; ++t) {
    detail::announcement a;
    a.name = verified_tensors::name(t);
    a.what.types = {dtype::float32};
    a.what.shapes = {{c.bytes / sizeof(float)}};
    all.all.push_back(std::move(a));
  }
  return all.text().size();
}

/// The cost of a step with the engine and without; the difference is agreement. Messages of a part are those of a
/// simulation with it less those of one without it. Results are verified on all ranks, so messages carry their bytes.
/// Packing, reductions and computation take no virtual time. Memory: several times the tensors of all ranks. Errors:
/// those of `simulate`, and a wrong result.
inline engine_costs simulate_engine(const engine_case& c, const network& net) {
  std::array<simulation, 3> runs;
  std::vector<double> seconds;
  for (std::size_t steps = 0; steps != 3; ++steps) {
    runs[steps] = with_engine(c, net, static_cast<int>(steps), seconds);
  }
  const auto less = [](const simulation::traffic& a, const simulation::traffic& b) {
    return simulation::traffic{a.messages - b.messages, a.bytes - b.bytes};
  };
  const auto step = [&](std::size_t i) {
    return engine_cost{seconds[i], less(runs[i].inside, runs[i - 1].inside),
                       less(runs[i].between, runs[i - 1].between)};
  };
  return {.start = {seconds[0], runs[0].inside, runs[0].between},
          .first = step(1),
          .later = step(2),
          .data = without_engine(c, net),
          .announcement_bytes = announcement_bytes(c)};
}

}  // namespace hvd::bench
