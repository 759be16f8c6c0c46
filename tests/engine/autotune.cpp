// tests/engine/autotune.cpp: an engine that tunes itself gives the same results, agrees between ranks, and ends.
#include <hvd/engine.hpp>
#include <hvd/launch.hpp>

#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include <unistd.h>

namespace {

std::vector<std::string> lines_of(const std::filesystem::path& path) {
  std::vector<std::string> all;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) all.push_back(line);
  return all;
}

}  // namespace

TEST_CASE("tuning on the running job") {
  for (const int np : {1, 2, 3}) {
    CAPTURE(np);
    const auto log = std::filesystem::temp_directory_path() / ("hvd-autotune-" + std::to_string(::getpid()) + ".csv");
    std::vector<int> wrong(static_cast<std::size_t>(np), 0);
    hvd::thread_run(np, [&](hvd::ThreadTransport& comm) {
      hvd::engine_options o;
      o.autotune = true;
      o.autotune_log = log.string();
      o.autotune_warmup = 1;
      o.autotune_steps = 2;
      o.autotune_samples = 6;
      hvd::Engine engine(comm, o);
      std::vector<std::vector<float>> gradients(6, std::vector<float>(500));
      for (int step = 0; step != 400; ++step) {
        std::vector<hvd::handle> in_flight;
        for (std::size_t i = 0; i != gradients.size(); ++i) {
          const std::size_t k = (i + static_cast<std::size_t>(comm.rank())) % gradients.size();
          gradients[k].assign(500, static_cast<float>(step % 7 + comm.rank()));
          in_flight.push_back(engine.allreduce("g" + std::to_string(k), gradients[k]));
        }
        for (const hvd::handle& h : in_flight) h.wait();
        const auto expected = static_cast<float>(np * (step % 7) + np * (np - 1) / 2);
        for (const auto& g : gradients) {
          if (g != std::vector<float>(500, expected)) ++wrong[static_cast<std::size_t>(comm.rank())];
        }
      }
    });
    CHECK(wrong == std::vector<int>(static_cast<std::size_t>(np), 0));

    const std::vector<std::string> lines = lines_of(log);
    std::filesystem::remove(log);
    REQUIRE(lines.size() > 10);
    CHECK(lines[0] == "fusion_threshold,cycle_time_us,score");
    std::set<std::string> settings;
    for (std::size_t i = 1; i != lines.size(); ++i) {
      const std::size_t end = lines[i].rfind(',');
      settings.insert(lines[i].substr(0, end));
      CHECK(std::stod(lines[i].substr(end + 1)) > 0);
    }
    CHECK(settings.contains("134217728,0"));  // the standard setting is among what is tried
    CHECK(settings.size() > 3);
  }
}

TEST_CASE("what the user has set is not searched") {
  const auto log = std::filesystem::temp_directory_path() / ("hvd-autotune-" + std::to_string(::getpid()) + ".csv");
  hvd::thread_run(2, [&](hvd::ThreadTransport& comm) {
    hvd::engine_options o;
    o.autotune = true;
    o.autotune_log = log.string();
    o.autotune_warmup = 0;
    o.autotune_steps = 1;
    o.autotune_samples = 6;
    o.fusion_threshold = 5000;
    o.threshold_fixed = true;
    hvd::Engine engine(comm, o);
    std::vector<float> v(100, 1.0f);
    for (int step = 0; step != 200; ++step) engine.allreduce("x", v).wait();
  });
  const std::vector<std::string> lines = lines_of(log);
  std::filesystem::remove(log);
  REQUIRE(lines.size() > 5);
  for (std::size_t i = 1; i != lines.size(); ++i) CHECK(lines[i].starts_with("5000,"));
}

TEST_CASE("a log that cannot be written is an error at the start") {
  hvd::thread_run(1, [&](hvd::ThreadTransport& comm) {
    hvd::engine_options o;
    o.autotune = true;
    o.autotune_log = "/there/is/no/such/directory/log.csv";
    CHECK_THROWS_WITH_AS(
        hvd::Engine(comm, o),
        doctest::Contains("HOROVOD_AUTOTUNE_LOG=\"/there/is/no/such/directory/log.csv\" cannot be written"),
        hvd::error);
  });
}
