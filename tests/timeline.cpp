// tests/timeline.cpp: what is recorded is what the file shows, in order, from any thread.
#include <hvd/timeline.hpp>

#include "support/processes.hpp"
#include "support/timeline_reader.hpp"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace {

using hvd::Timeline;
using hvd::test::private_directory;
using hvd::test::timeline_events;
using nlohmann::json;

constexpr std::array<std::size_t, 2> two_by_three = {2, 3};

std::int64_t steady_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

Timeline::options of_rank(int rank, int size, const std::string& job = "job 1") {
  return {.rank = rank,
          .size = size,
          .host = "node \"7\"",
          .job = job,
          .start_steady_ns = steady_ns(),
          .start_epoch_us = 1'700'000'000'000'000};
}

std::uint32_t process_of(const std::string& name) {
  return static_cast<std::uint32_t>(hvd::detail::text_hash(name) % INT32_MAX) + 1;
}

// Without the times, which are checked to be within the limits and to never go back.
std::vector<json> without_times(std::vector<json> events, double least, double most) {
  for (json& e : events) {
    if (!e.contains("ts")) continue;
    CHECK(e["ts"].get<double>() >= least);
    CHECK(e["ts"].get<double>() <= most);
    least = e["ts"].get<double>();
    e.erase("ts");
  }
  return events;
}

std::size_t entries(const char* folder) {
  std::size_t n = 0;
  for ([[maybe_unused]] const auto& e : std::filesystem::directory_iterator(folder)) ++n;
  return n;
}

}  // namespace

TEST_CASE("what one rank does with a tensor is in the file, event by event") {
  const private_directory folder;
  const std::string path = folder.path() + "/t.json";
  auto o = of_rank(2, 4);
  o.mark_cycles = true;
  {
    Timeline t(path, o);
    CHECK(t.active());
    const std::uint32_t w = t.tensor("allreduce.w");
    CHECK(w == 0);
    t.cycle();
    t.begin(w, "NEGOTIATE_ALLREDUCE");
    t.tick(w, 2);
    t.tick(w, 11);
    t.end(w);
    t.begin(w, "ALLREDUCE");
    t.begin(w, "QUEUE");
    t.end(w);
    t.end(w, hvd::dtype::bfloat16, two_by_three);
    t.stop();
    CHECK_FALSE(t.active());
    CHECK(t.dropped() == 0);
    t.begin(w, "too late");
    t.stop();
  }
  const double most = static_cast<double>(steady_ns() - o.start_steady_ns) / 1000;
  const std::uint32_t p = process_of("allreduce.w");
  const json expected = {
      {{"name", "process_name"},
       {"ph", "M"},
       {"pid", 0},
       {"args", {{"name", "hvd"}, {"job", "job 1"}, {"start_time_since_epoch_in_micros", 1'700'000'000'000'000}}}},
      {{"name", "process_sort_index"}, {"ph", "M"}, {"pid", 0}, {"args", {{"sort_index", 0}}}},
      {{"name", "thread_name"}, {"ph", "M"}, {"pid", 0}, {"tid", 2}, {"args", {{"name", "rank 2"}}}},
      {{"name", "hvd_rank"},
       {"ph", "M"},
       {"pid", 0},
       {"tid", 2},
       {"args", {{"rank", 2}, {"size", 4}, {"process", ::getpid()}, {"host", "node \"7\""}}}},
      {{"name", "CYCLE_START"}, {"ph", "i"}, {"pid", 0}, {"tid", 2}, {"s", "g"}},
      {{"name", "process_name"}, {"ph", "M"}, {"pid", p}, {"tid", 2}, {"args", {{"name", "allreduce.w"}}}},
      {{"name", "process_sort_index"}, {"ph", "M"}, {"pid", p}, {"tid", 2}, {"args", {{"sort_index", 1}}}},
      {{"name", "thread_name"}, {"ph", "M"}, {"pid", p}, {"tid", 2}, {"args", {{"name", "rank 2"}}}},
      {{"name", "NEGOTIATE_ALLREDUCE"}, {"ph", "B"}, {"pid", p}, {"tid", 2}},
      {{"name", "2"}, {"ph", "X"}, {"dur", 0}, {"pid", p}, {"tid", 2}},
      {{"name", "11"}, {"ph", "X"}, {"dur", 0}, {"pid", p}, {"tid", 2}},
      {{"ph", "E"}, {"pid", p}, {"tid", 2}},
      {{"name", "ALLREDUCE"}, {"ph", "B"}, {"pid", p}, {"tid", 2}},
      {{"name", "QUEUE"}, {"ph", "B"}, {"pid", p}, {"tid", 2}},
      {{"ph", "E"}, {"pid", p}, {"tid", 2}},
      {{"ph", "E"}, {"pid", p}, {"tid", 2}, {"args", {{"dtype", "bfloat16"}, {"shape", "[2, 3]"}}}},
  };
  CHECK(json(without_times(timeline_events(path), 0, most)) == expected);
}

TEST_CASE("steps, waits and stalls are on process 0") {
  const private_directory folder;
  const std::string path = folder.path() + "/t.json";
  Timeline t;
  t.step(7);  // recorded nowhere
  t.stall("too early");
  const auto o = of_rank(1, 2);
  t.start(path, o);
  const std::uint32_t w = t.tensor("w"), of_set = t.tensor("w", 3);
  t.step();
  t.step(64);
  const auto since = std::chrono::steady_clock::now();
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  t.waited(w, since);
  t.waited(of_set, since);
  t.waited(hvd::detail::timeline_names::unknown, since);
  t.stall("a \"stall\"\nof two lines");
  t.stall("another");
  t.members(3, std::array{0, 2});
  t.stop();
  CHECK(t.dropped() == 1);  // the unknown tensor
  std::vector<json> own;
  for (json& e : timeline_events(path)) {
    if (e.value("name", "") == "hvd_process_set") CHECK(e.at("args") == json{{"set", 3}, {"ranks", {0, 2}}});
    if (!e.contains("ts")) continue;
    CHECK(e.at("pid") == 0);
    CHECK(e.at("tid") == 1);
    own.push_back(std::move(e));
  }
  const auto begin = static_cast<double>(since.time_since_epoch().count() - o.start_steady_ns) / 1000;
  for (const std::size_t i : {2u, 3u}) {
    CHECK(own.at(i).at("ts").get<double>() == doctest::Approx(begin).epsilon(1e-9));
    CHECK(own.at(i).at("dur").get<double>() >= 2000);
    own.at(i).erase("dur");
  }
  for (json& e : own) {
    for (const char* const key : {"ts", "pid", "tid"}) e.erase(key);
  }
  REQUIRE(own.size() == 7);
  CHECK(own[0] == json{{"ph", "i"}, {"name", "STEP"}, {"s", "t"}, {"args", {{"samples", 0}}}});
  CHECK(own[1] == json{{"ph", "i"}, {"name", "STEP"}, {"s", "t"}, {"args", {{"samples", 64}}}});
  CHECK(own[2] == json{{"ph", "X"}, {"name", "WAIT"}, {"args", {{"tensor", "w"}}}});
  CHECK(own[3] == json{{"ph", "X"}, {"name", "WAIT"}, {"args", {{"tensor", "set 3: w"}}}});
  CHECK(own[4] == json{{"ph", "i"}, {"name", "STALL"}, {"s", "g"}, {"args", {{"text", "a \"stall\"\nof two lines"}}}});
  CHECK(own[5] == json{{"ph", "i"}, {"name", "STALL"}, {"s", "g"}, {"args", {{"text", "another"}}}});
  CHECK(own[6].at("name") == "DROPPED");
}

TEST_CASE("a text that does not fit is lost with its event, and no other event gets it") {
  const private_directory folder;
  const std::string path = folder.path() + "/t.json";
  Timeline t(path, of_rank(0, 1));
  {
    const hvd::test::held_lock writer_waits(path);
    const std::uint32_t w = t.tensor("w");
    while (t.dropped() == 0) t.tick(w, 1);
    const std::uint64_t before = t.dropped();
    for (int i = 0; i != 3 && t.dropped() == before; ++i) t.stall("lost");  // the writer may take some events first
  }
  t.stop();
  t.start(path, of_rank(0, 1));
  t.stall("kept");
  t.stop();
  std::vector<std::string> texts;
  for (const json& e : timeline_events(path)) {
    if (e.value("name", "") == "STALL") texts.push_back(e.at("args").at("text"));
  }
  REQUIRE(!texts.empty());
  CHECK(texts.back() == "kept");
  CHECK(std::count(texts.begin(), texts.end(), "kept") == 1);
}

TEST_CASE("cycles are marked only if they are asked for") {
  const private_directory folder;
  Timeline t(folder.path() + "/t.json", of_rank(0, 1));
  t.cycle();
  t.stop();
  CHECK(timeline_events(folder.path() + "/t.json").size() == 4);  // the header
}

TEST_CASE("shapes: a scalar, the longest, and one that is longer") {
  const private_directory folder;
  const std::string path = folder.path() + "/t.json";
  Timeline t(path, of_rank(0, 1));
  const std::uint32_t w = t.tensor("w");
  const std::vector<std::size_t> dims = {1, SIZE_MAX, 3, 4, 5, 6};
  for (const std::size_t n : {0u, 1u, 5u, 6u}) {
    t.begin(w, "A");
    t.end(w, hvd::dtype::boolean, std::span(dims).first(n));
  }
  t.stop();
  std::vector<std::string> shapes;
  for (const json& e : timeline_events(path)) {
    if (e["ph"] == "E") shapes.push_back(e["args"]["shape"]);
  }
  CHECK(shapes == std::vector<std::string>{"[]", "[1]", "[1, 18446744073709551615, 3, 4, 5]",
                                           "[1, 18446744073709551615, 3, 4, 5, ...]"});
}

TEST_CASE("an end that was lost ends with the outermost, an end without a beginning is dropped, what is open at the "
          "end ends") {
  const private_directory folder;
  const std::string path = folder.path() + "/t.json";
  Timeline t(path, of_rank(0, 1));
  const std::uint32_t w = t.tensor("w"), v = t.tensor("v");
  t.end(w);
  t.begin(w, "A");
  t.begin(w, "B");
  t.begin(w, "C");
  t.end(w, hvd::dtype::int8, {});
  t.end(w, hvd::dtype::int8, {});
  t.begin(v, "D");
  t.stop();
  CHECK(t.dropped() == 2);
  const auto events = timeline_events(path);
  std::string order;
  for (const json& e : events) {
    if (e["ph"] == "B") order += e["name"].get<std::string>();
    if (e["ph"] == "E") order += !e.contains("args") ? "e" : e["args"].contains("dtype") ? "r" : "u";
  }
  CHECK(order == "ABCeerDu");
  CHECK(hvd::test::count(events, "i", "DROPPED") == 1);
}

TEST_CASE("any name is a name: quotes, control characters, broken UTF-8") {
  const private_directory folder;
  const std::string path = folder.path() + "/t.json";
  auto o = of_rank(0, 1, "a \"job\" \\ of\n\xff");
  const std::vector<std::string> names = {"a\"b\\c/d",
                                          std::string("\0\x01\x1f\x7f", 4),
                                          "gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80",
                                          "\xc3",
                                          "\xed\xa0\x80",
                                          "\xc0\xaf\xf4\x90\x80\x80",
                                          "\xf0\x80\x80\x80",
                                          "\xe2\x82",
                                          "",
                                          "}\n]\n"};
  const std::vector<std::string> shown = {names[0],
                                          names[1],
                                          names[2],
                                          "\xef\xbf\xbd",
                                          "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd",
                                          "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd",
                                          "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd",
                                          "\xef\xbf\xbd\xef\xbf\xbd",
                                          "",
                                          names[9]};
  for (int again = 0; again != 2; ++again) {  // the second finds the job in the header
    Timeline t(path, o);
    for (const std::string& name : names) t.tick(t.tensor(name), 0);
  }
  std::vector<std::string> seen;
  for (const json& e : timeline_events(path)) {
    if (e["name"] == "process_name" && e["pid"] != 0) seen.push_back(e["args"]["name"]);
  }
  std::vector<std::string> twice = shown;
  twice.insert(twice.end(), shown.begin(), shown.end());
  CHECK(seen == twice);
}

TEST_CASE("two names with one hash are two processes") {
  const std::string first = "layer50941.weight", second = "layer141756.weight";
  REQUIRE(process_of(first) == process_of(second));
  const private_directory folder;
  const std::string path = folder.path() + "/t.json";
  Timeline t(path, of_rank(0, 1));
  CHECK(t.tensor(first) == 0);
  CHECK(t.tensor(second) == 1);
  CHECK(t.tensor(first) == 0);
  t.tick(1, 0);
  t.tick(0, 0);
  t.stop();
  std::map<std::string, std::uint32_t> processes;
  for (const json& e : timeline_events(path)) {
    if (e["name"] == "process_name" && e["pid"] != 0) processes[e["args"]["name"]] = e["pid"];
  }
  CHECK(processes == std::map<std::string, std::uint32_t>{{first, process_of(first)}, {second, process_of(first) + 1}});
}

TEST_CASE("a tensor of a process set has a row of its own, whatever others are called") {
  const private_directory folder;
  const std::string path = folder.path() + "/t.json";
  Timeline t(path, of_rank(0, 1));
  CHECK(t.tensor("x", 1) == 0);
  CHECK(t.tensor("set 1: x") == 1);
  CHECK(t.tensor("x") == 2);
  CHECK(t.tensor("x", 2) == 3);
  CHECK(t.tensor("x", 1) == 0);
  for (std::uint32_t i = 0; i != 4; ++i) t.tick(i, 0);
  t.stop();
  std::map<std::uint32_t, std::string> names;
  for (const json& e : timeline_events(path)) {
    if (e["name"] == "process_name" && e["pid"] != 0) names[e["pid"]] = e["args"]["name"];
  }
  const std::uint32_t x = process_of("x");
  CHECK(names == std::map<std::uint32_t, std::string>{
                     {x, "x"}, {x + 1, "set 1: x"}, {x + 2, "set 2: x"}, {process_of("set 1: x"), "set 1: x"}});
}

TEST_CASE("there is room for so many names, and unknown tensors are dropped") {
  const private_directory folder;
  Timeline t(folder.path() + "/t.json", of_rank(0, 1));
  constexpr auto most = hvd::detail::timeline_names::most;
  for (std::uint32_t i = 0; i != most; ++i) REQUIRE(t.tensor(std::to_string(i)) == i);
  const std::uint32_t beyond = t.tensor("one more");
  CHECK(beyond == hvd::detail::timeline_names::unknown);
  CHECK(t.tensor("0") == 0);
  t.begin(beyond, "A");
  t.tick(most, 0);  // never given
  t.tick(most - 1, 0);
  t.stop();
  CHECK(t.dropped() == 2);
  CHECK(hvd::test::count(timeline_events(folder.path() + "/t.json"), "X") == 1);
}

TEST_CASE("all ranks write one file, with a row for each, and know a tensor by the same number") {
  constexpr int tensors = 20, steps = 30;
  for (int size = 1; size <= 4; ++size) {
    CAPTURE(size);
    const private_directory folder;
    const std::string path = folder.path() + "/t.json";
    std::atomic<int> writing = size;
    std::vector<std::thread> ranks;
    for (int r = 0; r != size; ++r) {
      ranks.emplace_back([&, r] {
        Timeline t(path, of_rank(r, size));
        for (int i = 0; i != tensors; ++i) t.tensor("grad." + std::to_string((i * 7 + r) % tensors));  // in any order
        for (int s = 0; s != steps; ++s) {
          for (int i = 0; i != tensors; ++i) {
            const std::uint32_t w = t.tensor("grad." + std::to_string(i));
            t.begin(w, "ALLREDUCE");
            t.tick(w, r);
            t.end(w, hvd::dtype::float32, two_by_three);
          }
          if (s % 10 == 0) hvd::test::pause_for(0.05);
        }
        t.stop();
        CHECK(t.dropped() == 0);
        --writing;
      });
    }
    while (writing != 0) {
      if (std::filesystem::exists(path) && std::filesystem::file_size(path) != 0) timeline_events(path);
    }
    for (std::thread& t : ranks) t.join();

    const auto events = timeline_events(path);
    std::map<std::pair<std::uint32_t, int>, std::string> rows;
    std::map<std::uint32_t, std::string> names;
    double last = 0;
    for (const json& e : events) {
      if (e["ph"] == "M") {
        if (e["name"] != "process_name" || e["pid"] == 0) continue;
        const std::string name = e["args"]["name"];
        CHECK(names.emplace(e["pid"], name).first->second == name);
        CHECK(e["pid"] == process_of(name));
      } else {
        rows[{e["pid"], e["tid"]}] += e["ph"];
        if (size == 1) CHECK(e["ts"] >= last);
        if (size == 1) last = e["ts"];
        if (e["ph"] == "X") CHECK(e["name"] == std::to_string(e["tid"].get<int>()));
      }
    }
    CHECK(names.size() == tensors);
    REQUIRE(rows.size() == static_cast<std::size_t>(tensors * size));
    std::string expected;
    for (int s = 0; s != steps; ++s) expected += "BXE";
    for (const auto& [row, phases] : rows) CHECK(phases == expected);
    for (int r = 0; r != size; ++r) {
      CHECK(std::count_if(events.begin(), events.end(), [&](const json& e) {
              return e["ph"] == "M" && e["name"] == "thread_name" && e["tid"] == r &&
                     e["args"]["name"] == "rank " + std::to_string(r);
            }) == tensors + 1);  // and the row of what belongs to no tensor
    }
  }
}

TEST_CASE("several threads record at once: nothing is lost, and each keeps its order") {
  constexpr int threads = 4, events = 3000;
  const private_directory folder;
  const std::string path = folder.path() + "/t.json";
  Timeline t(path, of_rank(0, 1));
  std::vector<std::thread> all;
  for (int i = 0; i != threads; ++i) {
    all.emplace_back([&, i] {
      const std::uint32_t mine = t.tensor("thread " + std::to_string(i));
      for (int e = 0; e != events; ++e) t.tick(mine, e);
    });
  }
  for (std::thread& thread : all) thread.join();
  t.stop();
  CHECK(t.dropped() == 0);
  std::map<std::uint32_t, int> next;
  for (const json& e : timeline_events(path)) {
    if (e["ph"] == "X") REQUIRE(e["name"] == std::to_string(next[e["pid"]]++));
  }
  CHECK(next.size() == threads);
  for (const auto& [process, count] : next) CHECK(count == events);
}

TEST_CASE("what does not fit is dropped and counted, and the file says how many") {
  const private_directory folder;
  const std::string path = folder.path() + "/t.json";
  Timeline t(path, of_rank(0, 1));
  const std::uint32_t w = t.tensor("w");
  constexpr std::uint64_t events = 100'000;  // more than the ring and a text have room for
  {
    const hvd::test::held_lock lock(path);  // nobody can append
    for (std::uint64_t e = 0; e != events; ++e) t.tick(w, 0);
    CHECK(t.dropped() > 0);
  }
  t.tick(w, 1);
  t.stop();
  const auto all = timeline_events(path);
  std::uint64_t shown = 0;
  for (const json& e : all) {
    if (e.value("name", "") == "DROPPED") {
      shown += e["args"]["events"].get<std::uint64_t>();
      CHECK(e["args"]["total"] == shown);
    }
  }
  CHECK(shown == t.dropped());
  CHECK(hvd::test::count(all, "X") + t.dropped() == events + 1);
}

TEST_CASE("stopped and started again, a job continues its file; another job begins anew") {
  const private_directory folder;
  const std::string path = folder.path() + "/t.json", other = folder.path() + "/other.json";
  Timeline t;
  CHECK_FALSE(t.active());
  const std::uint32_t w = t.tensor("w");
  t.tick(w, 0);  // before the first start
  t.stop();
  t.start(path, of_rank(0, 1));
  t.tick(w, 1);
  t.start(path, of_rank(0, 1, "ignored"));  // already there
  t.tick(w, 2);
  t.start(other, of_rank(0, 1));
  t.tick(w, 3);
  CHECK_THROWS_AS(t.start(folder.path(), of_rank(0, 1)), hvd::error);
  CHECK(t.active());  // as before
  t.tick(w, 4);
  t.stop();
  t.tick(w, 5);
  t.start(path, of_rank(0, 1));
  t.tick(w, 6);
  t.stop();
  const auto ticks = [](const std::string& file) {
    std::string all;
    for (const json& e : timeline_events(file)) {
      if (e["ph"] == "X") all += e["name"];
    }
    return all;
  };
  CHECK(ticks(path) == "126");
  CHECK(ticks(other) == "34");
  t.start(path, of_rank(0, 1, "job 2"));
  t.tick(w, 7);
  t.stop();
  CHECK(ticks(path) == "7");
}

TEST_CASE("times count from the job's first start, on rank 0's clock") {
  const private_directory folder;
  const std::string path = folder.path() + "/t.json";
  using namespace std::chrono_literals;
  auto o = of_rank(0, 2);
  Timeline(path, o).tick(0, 0);
  o.rank = 1;
  const auto tick = [&] {
    Timeline t(path, o);
    t.tick(t.tensor("w"), 1);
    t.stop();
    return timeline_events(path).back()["ts"].get<double>() / 1e6;
  };
  const double plain = tick();
  CHECK(plain < 1000);
  o.clock_offset = 5000s;  // this host's clock is behind
  const double ahead = tick();
  CHECK(ahead > plain + 5000);
  CHECK(ahead < plain + 5500);
  o.clock_offset = -5000s;
  CHECK(tick() < plain - 4500);
  o.clock_offset = 0s;
  o.start_epoch_us += 7'000'000'000;   // a later start of the same job, at which ...
  o.start_steady_ns += 1'000'000'000;  // ... the clock of rank 0 showed this
  const double later = tick();
  CHECK(later > plain + 6999);
  CHECK(later < plain + 7500);
}

TEST_CASE("events are in the file soon, however long there were none before") {
  const private_directory folder;
  const std::string path = folder.path() + "/t.json";
  const auto threads = [] {
    std::set<std::string> all;
    for (const auto& e : std::filesystem::directory_iterator("/proc/self/task")) all.insert(e.path());
    return all;
  };
  const auto before = threads();
  Timeline t(path, of_rank(0, 1));
  const std::uint32_t w = t.tensor("w");
  for (int i = 1; i <= 4; ++i) {
    t.tick(w, i);
    const double limit = hvd::test::now() + 20;
    while (hvd::test::count(timeline_events(path), "X") != static_cast<std::size_t>(i)) {
      REQUIRE(hvd::test::now() < limit);
      hvd::test::pause_for(0.005);
    }
    if (i % 2 == 0) hvd::test::pause_for(0.3);  // by now the writer sleeps until there is an event
  }
  // How often it has run: never, or once if this machine is busy. It would be ten times if it looked now and then.
  const auto switches = [&] {
    long n = -1;
    for (const std::string& thread : threads()) {
      if (before.contains(thread)) continue;
      std::ifstream status(thread + "/status");
      for (std::string line; std::getline(status, line);) {
        if (line.starts_with("voluntary_ctxt_switches:")) n = std::max(n, std::stol(line.substr(24)));
      }
    }
    return n;
  };
  const long idle = switches();
  REQUIRE(idle >= 0);
  hvd::test::pause_for(1.0);
  CHECK(switches() - idle <= 2);
}

TEST_CASE("five hundred starts leave nothing behind") {
  const private_directory folder;
  const auto once = [&](int i) {
    Timeline t(folder.path() + "/t.json", of_rank(0, 1, "job " + std::to_string(i)));
    t.tick(t.tensor("w"), i);
    t.stop();
  };
  once(0);
  const std::size_t files = entries("/proc/self/fd"), threads = entries("/proc/self/task");
  for (int i = 1; i != 500; ++i) once(i);
  CHECK(entries("/proc/self/fd") == files);
  CHECK(entries("/proc/self/task") == threads);
  CHECK(timeline_events(folder.path() + "/t.json").back()["name"] == "499");
}

TEST_CASE("a ring is full when it is full, and keeps the order round after round") {
  hvd::detail::trace_ring ring(8);
  hvd::detail::trace_event e;
  CHECK(ring.empty());
  CHECK_FALSE(ring.pop());
  std::uint32_t pushed = 0, popped = 0;
  for (int round = 0; round != 1000; ++round) {
    for (int i = 0; i != 8; ++i) {
      e.tensor = pushed;
      REQUIRE(ring.push(e) == pushed);
      ++pushed;
    }
    REQUIRE_FALSE(ring.push(e));
    REQUIRE_FALSE(ring.empty());
    for (int i = 0; i != 8; ++i) REQUIRE(ring.pop()->tensor == popped++);
    REQUIRE(ring.empty());
    REQUIRE_FALSE(ring.pop());
  }
}
