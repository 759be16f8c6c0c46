// Many more ranks than CPUs: start, collectives, engine, stall report, shutdown, and how long each took.
// usage: campaign_crowd RANKS LATE; prints a line `PHASE SECONDS` for each phase when all ranks are through it;
// `report` is from the moment at which a tensor of all ranks but LATE is in flight until the watch has named that one.
#include <hvd/hvd.hpp>

#include <support/processes.hpp>
#include <support/require.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <sys/mman.h>

namespace {

using hvd::test::now;
using hvd::test::pause_for;
using hvd::test::require;

constexpr double warning = 1.0;     // seconds until the watch speaks
constexpr double no_report = 60.0;  // seconds after which the late rank comes without having been named

struct shared_state {
  std::atomic<double> submitted{0.0}, reported{0.0}, shut_down{0.0};
};

void through(const hvd::ShmTransport& comm, const char* phase, double since) {
  if (comm.rank() != 0) return;
  std::printf("%s %.3f\n", phase, now() - since);
  std::fflush(stdout);
}

void collectives(hvd::ShmTransport& comm) {
  const std::int64_t p = comm.size(), r = comm.rank();
  for (const std::size_t n : {std::size_t{1}, std::size_t{700}, std::size_t{40'000}}) {
    for (int i = 0; i != 5; ++i) {
      std::vector<std::int64_t> data(n, r + i), all(static_cast<std::size_t>(p));
      hvd::allreduce(comm, data);
      require(data.front() == p * (p - 1) / 2 + p * i && data.back() == data.front(), "wrong sum");
      hvd::allgather(comm, std::span(&r, 1), all);
      require(all.front() == 0 && all.back() == p - 1, "wrong allgather");
      hvd::barrier(comm);
    }
  }
}

void named(hvd::Engine<hvd::ShmTransport>& engine) {
  std::vector<std::vector<float>> data(40, std::vector<float>(500, 1.0F));
  for (int i = 0; i != 3; ++i) {
    std::vector<hvd::handle> handles;
    for (std::size_t t = 0; t != data.size(); ++t) {
      data[t].assign(data[t].size(), 1.0F);
      handles.push_back(engine.allreduce("t" + std::to_string(t), data[t]));
    }
    for (const hvd::handle& h : handles) h.wait();
    for (const auto& one : data) require(one.front() == static_cast<float>(engine.size()), "wrong sum by name");
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const int ranks = std::atoi(argv[1]), late = std::atoi(argv[2]);
  void* const memory = ::mmap(nullptr, sizeof(shared_state), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 1;
  auto& common = *new (memory) shared_state;
  auto sharing = hvd::sharing_options::from_environment();
  sharing.memory.staging_bytes = static_cast<std::size_t>(ranks) * 2048;  // about the least for so many
  sharing.failure.start_timeout = std::chrono::seconds(200);
  sharing.failure.timeout = std::chrono::seconds(200);
  double since = now();  // each rank has its own
  const int code = hvd::fork_run(
      ranks,
      [&](hvd::ShmTransport& comm) {
        const auto next = [&](const char* phase) {
          hvd::barrier(comm);
          through(comm, phase, since);
          since = now();
        };
        next("start");
        collectives(comm);
        next("collectives");
        hvd::engine_options options;
        options.stall_warning = std::chrono::duration<double>(warning);
        options.report = [&](const std::string& text) {
          const bool named = text.find("\"late\"") != std::string::npos &&
                             text.find("not submitted by rank " + std::to_string(late)) != std::string::npos;
          if (named && common.reported == 0.0) common.reported = now();
        };
        std::optional<hvd::Engine<hvd::ShmTransport>> engine(std::in_place, comm, options);
        next("engine");
        named(*engine);
        next("names");
        if (comm.rank() == late) {
          for (const double end = now() + no_report; common.reported == 0.0 && now() < end;) pause_for(0.01);
        } else if (common.submitted == 0.0) {
          common.submitted = now();
        }
        std::vector<float> data(10, 1.0F);
        engine->allreduce("late", data).wait();
        if (comm.rank() == late) {
          std::printf("report %.3f\n", common.reported == 0.0 ? -1.0 : common.reported - common.submitted);
          std::fflush(stdout);
        }
        next("late");
        engine.reset();
        next("shutdown");
        if (comm.rank() == 0) common.shut_down = now();
      },
      sharing);
  std::printf("end %.3f\n", now() - common.shut_down);
  return code;
}
