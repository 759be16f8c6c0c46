// bench/comparison/hosts.cpp: allreduce over an MPI, between hosts: plain MPI calls, hvd over MPI, and hvd on two
// levels.
//
// Started by mpiexec; rank 0 prints JSON. All contenders are measured in turns between the same barriers, on the same
// buffers, and every result is checked. `bench/compare --hosts` runs it.
#include <bench/report/explain.hpp>

#include <hvd/algorithm/measure.hpp>
#include <hvd/allreduce.hpp>
#include <hvd/hierarchical.hpp>
#include <hvd/transport/mpi.hpp>
#include <hvd/transport/shm.hpp>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

namespace {

struct contender {
  std::string name;
  std::function<void(const float* in, float* out, std::size_t n)> call;
  std::vector<double> us{};  // of the slowest rank, one for each round
  std::uint64_t wrong = 0;
};

/// Small whole numbers, whose sums are exact in any order.
float input(int rank, std::size_t i) { return static_cast<float>((i * 7 + static_cast<std::size_t>(rank) * 13) % 97); }

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void measure(contender& one, const std::vector<float>& in, std::vector<float>& out, int calls) {
  MPI_Barrier(MPI_COMM_WORLD);
  const double start = MPI_Wtime();
  for (int k = 0; k != calls; ++k) one.call(in.data(), out.data(), in.size());
  const double mine = (MPI_Wtime() - start) / calls * 1e6;
  double slowest = 0;
  MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  one.us.push_back(slowest);
}

void check(contender& one, const std::vector<float>& in, std::vector<float>& out, int size) {
  std::fill(out.begin(), out.end(), -1.0F);
  one.call(in.data(), out.data(), in.size());
  std::uint64_t wrong = 0;
  for (std::size_t i = 0; i != out.size(); ++i) {
    float sum = 0;
    for (int r = 0; r != size; ++r) sum += input(r, i);
    wrong += out[i] != sum ? 1 : 0;
  }
  MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
  one.wrong += wrong;
}

nlohmann::json run(const std::vector<std::size_t>& sizes, int rounds, double seconds) {
  hvd::MpiTransport world;
  hvd::MpiTransport flat = world.split(0, world.rank());
  auto levels = hvd::Hierarchical<hvd::ShmTransport, hvd::MpiTransport>::over(world.split(0, world.rank()));
  const std::vector<contender> all{
      {"mpi", [](const float* in, float* out,
                 std::size_t n) { MPI_Allreduce(in, out, static_cast<int>(n), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); }},
      {"native",
       [&](const float* in, float* out, std::size_t n) { hvd::allreduce(world, in, out, n, hvd::sum, hvd::native{}); }},
      {"automatic", [&](const float* in, float* out, std::size_t n) { hvd::allreduce(flat, in, out, n); }},
      {"hierarchical", [&](const float* in, float* out, std::size_t n) { hvd::allreduce(levels, in, out, n); }},
  };
  nlohmann::json rows = nlohmann::json::array();
  for (const std::size_t bytes : sizes) {
    std::vector<contender> contenders = all;
    std::vector<float> in(bytes / sizeof(float)), out(in.size());
    for (std::size_t i = 0; i != in.size(); ++i) in[i] = input(world.rank(), i);
    for (contender& one : contenders) check(one, in, out, world.size());
    for (contender& one : contenders) measure(one, in, out, 1);
    std::vector<int> calls;
    for (contender& one : contenders) {
      calls.push_back(std::clamp(static_cast<int>(seconds * 1e6 / one.us.front() / rounds), 1, 1000));
      one.us.clear();
    }
    for (int k = 0; k != rounds; ++k) {
      for (std::size_t i = 0; i != contenders.size(); ++i) {
        const std::size_t turn = (i + static_cast<std::size_t>(k)) % contenders.size();
        measure(contenders[turn], in, out, calls[turn]);
      }
    }
    for (contender& one : contenders) check(one, in, out, world.size());
    nlohmann::json row{{"bytes", bytes}};
    for (const contender& one : contenders) {
      row[one.name] = {{"us", median(one.us)}, {"rounds", one.us}, {"wrong", one.wrong}};
    }
    if (world.rank() == 0) std::cerr << bytes << " bytes\n";
    rows.push_back(std::move(row));
  }
  return {{"library", hvd::MpiTransport::library()},
          {"hvd", hvd::version},
          {"ranks", world.size()},
          {"hosts", levels.hosts()},
          {"costs", hvd::to_string(flat.selection().model.costs)},
          {"rounds", rounds},
          {"rows", std::move(rows)}};
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Measures allreduce of floats over MPI; start it with mpiexec.");
  std::vector<std::size_t> sizes{8, 1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20};
  int rounds = 5;
  double seconds = 0.5;
  bool explain = false;
  app.add_option("--sizes", sizes, "bytes")->delimiter(',')->check(CLI::Range(4UL, 1UL << 32));
  app.add_option("--rounds", rounds, "measurements of each contender")->check(CLI::Range(1, 1000));
  app.add_option("--seconds", seconds, "for all rounds of one contender and size")->check(CLI::Range(0.001, 1000.0));
  app.add_flag("--explain", explain, "measure what messages cost, and print what automatic chooses; nothing else");
  CLI11_PARSE(app, argc, argv);
  try {
    if (explain) {
      hvd::MpiTransport world;
      hvd::make_ready(world);
      if (world.rank() == 0) std::cout << hvd::bench::explain(world.selection(), world.size(), true);
      return 0;
    }
    const nlohmann::json result = run(sizes, rounds, seconds);
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == 0) std::cout << result.dump(1) << std::endl;
    for (const auto& row : result["rows"]) {
      for (const auto& [name, one] : row.items()) {
        if (one.is_object() && one["wrong"] != 0) return 1;
      }
    }
    return 0;
  } catch (const std::exception& e) {
    std::cerr << "bench-hosts: " << e.what() << '\n';
  }
  MPI_Abort(MPI_COMM_WORLD, 1);
  return 1;
}
