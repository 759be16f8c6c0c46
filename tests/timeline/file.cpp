// tests/timeline/file.cpp: a timeline that processes share stays strict JSON, whatever happens to disks and to
// processes.
#include <hvd/timeline.hpp>
#include <hvd/timeline/file.hpp>

#include "support/processes.hpp"
#include "support/skip.hpp"
#include "support/timeline_reader.hpp"
#include "support/tiny_directory.hpp"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

namespace {

using hvd::Timeline;
using hvd::detail::timeline_file;
using hvd::test::children;
using hvd::test::count;
using hvd::test::held_lock;
using hvd::test::private_directory;
using hvd::test::report;
using hvd::test::require;
using hvd::test::timeline_events;
using nlohmann::json;

Timeline::options of_rank(int rank, int size, const std::string& job = "job 1") {
  return {.rank = rank, .size = size, .job = job};
}

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
void write(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

timeline_file open_file(const std::string& path, const std::string& job = "job 1") {
  return timeline_file(path, "rank 0 of 1", job, 7, nullptr, nullptr);
}
timeline_file::outcome append(timeline_file& file, const std::string& lines) {
  return file.append(lines, std::chrono::seconds(20));
}
constexpr auto written = timeline_file::outcome::written;

/// How every timeline of hvd begins, in all versions.
const std::string own_beginning =
    R"([
{"name":"process_name","ph":"M","pid":0,"args":{"name":"hvd","job":)";

std::string tick(int n) {
  return ",\n{\"ph\":\"X\",\"pid\":1,\"tid\":0,\"name\":\"" + std::to_string(n) + "\",\"dur\":0,\"ts\":1.5}";
}

// Runs f(report&) in another process, and returns what it has printed on standard error.
template <class F>
std::string errors_of(const private_directory& folder, F&& f) {
  const std::string printed = folder.path() + "/errors";
  children child(1);
  child.start(0, [&](report& r) {
    const int fd = ::open(printed.c_str(), O_CREAT | O_WRONLY, 0600);
    require(fd >= 0 && ::dup2(fd, STDERR_FILENO) >= 0, "no file for errors");
    f(r);
  });
  REQUIRE(child.wait(60.0));
  CAPTURE(child[0].text());
  CHECK(child.status(0) == 0);
  return contents(printed);
}

// What a timeline says that cannot be made.
std::string refusal(const std::string& path, hvd::error_kind kind) {
  try {
    Timeline(path, of_rank(1, 4));
  } catch (const hvd::error& e) {
    CHECK(e.kind() == kind);
    return e.what();
  }
  return "no error";
}

std::size_t lines(const std::string& text) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

}  // namespace

TEST_CASE("processes append to one file, which is strict JSON whenever nobody writes") {
  constexpr int steps = 400;
  for (int size = 1; size <= 4; ++size) {
    CAPTURE(size);
    const private_directory folder;
    const std::string path = folder.path() + "/t.json";
    children ranks(size);
    ranks.start_all([&](int r, report&) {
      Timeline t(path, of_rank(r, size));
      const std::uint32_t w = t.tensor("w");
      for (int s = 0; s != steps; ++s) {
        t.begin(w, "ALLREDUCE");
        t.tick(w, s);
        t.end(w);
        if (s % 100 == 0) hvd::test::pause_for(0.03);
      }
      t.stop();
      require(t.dropped() == 0, "dropped");
    });
    REQUIRE(ranks.wait_while(60.0, [&] {
      bool running = false;
      for (int r = 0; r != size; ++r) running = running || ranks.running(r);
      if (std::filesystem::exists(path) && std::filesystem::file_size(path) != 0) timeline_events(path);
      return running;
    }));
    for (int r = 0; r != size; ++r) CHECK_MESSAGE(ranks.status(r) == 0, ranks[r].text());
    std::map<int, int> ticks;
    for (const json& e : timeline_events(path)) {
      if (e["ph"] == "X") REQUIRE(e["name"] == std::to_string(ticks[e["tid"]]++));
    }
    REQUIRE(ticks.size() == static_cast<std::size_t>(size));
    for (const auto& [rank, seen] : ticks) CHECK(seen == steps);
  }
}

TEST_CASE("whatever part of a write a killed process leaves, the next append mends it") {
  const private_directory folder;
  const std::string path = folder.path() + "/t.json";
  {
    timeline_file file = open_file(path);
    REQUIRE(append(file, tick(1) + tick(2)) == written);
    REQUIRE(append(file, tick(3)) == written);
  }
  const std::string whole = contents(path);
  REQUIRE(whole.ends_with("\n]\n"));
  REQUIRE(whole.starts_with(own_beginning));
  for (std::size_t cut = 0; cut != whole.size(); ++cut) {
    CAPTURE(cut);
    std::string part = whole.substr(0, cut);
    std::size_t complete = 0;
    for (std::size_t from = 0, to; (to = part.find('\n', from)) != std::string::npos; from = to + 1) {
      const std::string line = part.substr(from, to - from);
      complete += line.ends_with("}") || line.ends_with("},");
    }
    for (const bool zeros : {false, true}) {  // as some file systems leave them when the host fails
      const std::string left = part + std::string(zeros ? 3 : 0, '\0');
      write(path, left);
      if (!left.empty() && cut < own_beginning.size()) {  // nothing shows that it is a timeline
        CHECK(refusal(path, hvd::error::invalid_argument).find("something other than a timeline") != std::string::npos);
        REQUIRE(contents(path) == left);
        continue;
      }
      timeline_file file = open_file(path);
      REQUIRE(append(file, tick(4)) == written);
      const auto events = timeline_events(path);
      // Without the rest of its first line it is another job's, which is begun anew.
      CHECK(events.size() == (complete == 0 ? 2 : complete) + 1);
      CHECK(events.back()["name"] == "4");
    }
  }
}

TEST_CASE("a torn write that is longer than what is read at once is mended as well") {
  const private_directory folder;
  const std::string path = folder.path() + "/t.json";
  timeline_file file = open_file(path);
  const std::string header = contents(path);
  for (const std::size_t torn : {65533u, 65534u, 65535u, 65536u, 65537u, 200'000u}) {
    CAPTURE(torn);
    write(path, header);
    REQUIRE(append(file, tick(1)) == written);
    std::string text = contents(path);
    text.replace(text.size() - 3, 3, ",\n" + std::string(torn, 'x'));
    write(path, text);
    REQUIRE(append(file, tick(2)) == written);
    CHECK(contents(path) == header.substr(0, header.size() - 3) + tick(1) + tick(2) + "\n]\n");
  }
}

TEST_CASE("an array that ends behind a comma is mended as well") {
  const private_directory folder;
  const std::string path = folder.path() + "/t.json";
  { timeline_file file = open_file(path); }
  const std::string header = contents(path);
  for (const std::size_t lines : {1u, 2u}) {  // of the header, which has two
    CAPTURE(lines);
    const std::size_t first = header.find("}},\n") + 4;
    write(path, (lines == 1 ? header.substr(0, first) : header.substr(0, header.size() - 3) + ",\n") + "]\n");
    timeline_file file = open_file(path);
    REQUIRE(append(file, tick(1)) == written);
    REQUIRE(append(file, tick(2)) == written);
    CHECK(timeline_events(path).size() == lines + 2);
  }
}

TEST_CASE("ranks are killed while they write") {
  const private_directory folder;
  const std::string path = folder.path() + "/t.json";
  std::string much;
  for (int i = 0; i != 2000; ++i) much += tick(i);
  children ranks(3);
  ranks.start_all([&](int, report& r) {
    timeline_file file = open_file(path);
    for (;;) {
      require(append(file, much) == written, file.problem());
      ++r.progress;
      do hvd::test::pause_for(0.002);  // as the lock is not fair
      while (r.progress == 200);       // enough for any test
    }
  });
  for (int r = 0; r != 3; ++r) {
    REQUIRE(ranks.wait_while(60.0, [&] { return ranks.running(r) && ranks[r].progress < 3 * (r + 1); }));
    REQUIRE_MESSAGE(ranks.running(r), ranks[r].text());
    ranks.kill(r);
    REQUIRE(ranks.wait_while(60.0, [&] { return ranks.running(r); }));
    CHECK_MESSAGE(WIFSIGNALED(ranks.status(r)), ranks[r].text());  // the others' appends succeed
  }
  timeline_file file = open_file(path);
  REQUIRE(append(file, tick(-1)) == written);
  CHECK(timeline_events(path).back()["name"] == "-1");
}

TEST_CASE("a path that cannot be written is an error at the start that names it") {
  const private_directory folder;
  const std::string missing = folder.path() + "/no/t.json";
  CHECK(refusal(missing, hvd::error::invalid_argument) ==
        "hvd: timeline on rank 1 of 4: cannot open '" + missing +
            "' for writing: No such file or directory; give it a file in a directory that exists and that this user "
            "may write to");
  CHECK(refusal("", hvd::error::invalid_argument).find("cannot open ''") != std::string::npos);
  CHECK(refusal(folder.path(), hvd::error::invalid_argument).find("Is a directory") != std::string::npos);
  write(folder.path() + "/file", "");
  CHECK(refusal(folder.path() + "/file/t.json", hvd::error::invalid_argument).find("Not a directory") !=
        std::string::npos);
  CHECK(refusal("/dev/null", hvd::error::invalid_argument).find("is not a regular file") != std::string::npos);
  REQUIRE(::mkfifo((folder.path() + "/pipe").c_str(), 0600) == 0);
  CHECK(refusal(folder.path() + "/pipe", hvd::error::invalid_argument).find("is not a regular file") !=
        std::string::npos);

  write(folder.path() + "/script.py", "import horovod\n");
  CHECK(refusal(folder.path() + "/script.py", hvd::error::invalid_argument).find("something other than a timeline") !=
        std::string::npos);
  CHECK(contents(folder.path() + "/script.py") == "import horovod\n");

  children nobody(1);
  nobody.start(0, [&](report& r) {
    require(::chmod(folder.path().c_str(), 0500) == 0, "chmod");
    require(::geteuid() != 0 || ::seteuid(65534) == 0, "seteuid");
    try {
      Timeline(folder.path() + "/t.json", of_rank(1, 4));
    } catch (const hvd::error& e) {
      require(std::string(e.what()).find("Permission denied") != std::string::npos, e.what());
      require(e.kind() == hvd::error::invalid_argument, e.what());
      r.progress = 1;
    }
  });
  REQUIRE(nobody.wait(20.0));
  CHECK_MESSAGE(nobody.status(0) == 0, nobody[0].text());
  CHECK(nobody[0].progress == 1);
}

TEST_CASE("an empty file, and hvd's timeline of another job, are begun anew, also behind a link") {
  const private_directory folder;
  const std::string path = folder.path() + "/t.json", link = folder.path() + "/link.json";
  REQUIRE(::symlink("t.json", link.c_str()) == 0);
  const std::string other = own_beginning + R"("job 0","start_time_since_epoch_in_micros":5}},
{"name":"process_sort_index","ph":"M","pid":0,"args":{"sort_index":0}},
{"ph":"X","pid":1,"tid":0,"name":"old","dur":0,"ts":1.5}
]
)";
  for (const std::string& opened : {path, link}) {
    for (const std::string& before : {std::string(), other, own_beginning}) {
      write(path, before);
      open_file(opened);
      const auto events = timeline_events(path);
      REQUIRE(events.size() == 2);
      CHECK(events[0]["args"] == json{{"name", "hvd"}, {"job", "job 1"}, {"start_time_since_epoch_in_micros", 7}});
    }
  }
}

TEST_CASE("a file that does not begin as a timeline of hvd is refused and left byte for byte as it is") {
  const private_directory folder;
  const std::string path = folder.path() + "/t.json", link = folder.path() + "/link.json";
  REQUIRE(::symlink("t.json", link.c_str()) == 0);
  std::string almost = own_beginning;
  almost[almost.find("hvd")] = 'H';
  const std::string binary("\0[\n{\"name\"", 11);
  for (const std::string& before :
       {std::string("[build-system]\nrequires = [\"hatchling\"]\n"), std::string("["), std::string("[]"),
        std::string("[\n"),
        std::string(R"([{"name":"process_name","ph":"M","pid":0,"args":{"name":"hvd","job":"j"}}])"),
        std::string("[\n{\"name\": \"process_name\", \"ph\": \"M\""), almost, "\n" + own_beginning, std::string("x"),
        binary, own_beginning.substr(0, own_beginning.size() - 1), std::string(100'000, '[')}) {
    CAPTURE(before.substr(0, 60));
    write(path, before);
    struct stat was {};
    REQUIRE(::stat(path.c_str(), &was) == 0);
    for (const std::string& opened : {path, link}) {
      const std::string why = refusal(opened, hvd::error::invalid_argument);
      CHECK_MESSAGE(why == "hvd: timeline on rank 1 of 4: '" + opened +
                               "' contains something other than a timeline of hvd, and is not changed; remove it, or "
                               "give the timeline another file",
                    why);
      CHECK(contents(path) == before);
    }
    struct stat is {};
    REQUIRE(::stat(path.c_str(), &is) == 0);
    CHECK((was.st_mtim.tv_sec == is.st_mtim.tv_sec && was.st_mtim.tv_nsec == is.st_mtim.tv_nsec));
  }
}

TEST_CASE("a file that cannot be read is refused, not emptied") {
  const private_directory folder;
  const std::string path = folder.path() + "/t.json";
  write(path, "precious");
  children nobody(1);
  nobody.start(0, [&](report& r) {
    require(::chmod(folder.path().c_str(), 0755) == 0 && ::chmod(path.c_str(), 0222) == 0, "chmod");
    require(::geteuid() != 0 || ::seteuid(65534) == 0, "seteuid");
    try {
      Timeline(path, of_rank(1, 4));
    } catch (const hvd::error& e) {
      require(std::string(e.what()).find("Permission denied") != std::string::npos, e.what());
      require(e.kind() == hvd::error::invalid_argument, e.what());
      r.progress = 1;
    }
  });
  REQUIRE(nobody.wait(20.0));
  CHECK_MESSAGE(nobody.status(0) == 0, nobody[0].text());
  CHECK(nobody[0].progress == 1);
  REQUIRE(::chmod(path.c_str(), 0600) == 0);
  CHECK(contents(path) == "precious");
  // Its memory, which reads as a file whose first page is not there.
  CHECK(refusal("/proc/self/mem", hvd::error::system).find("cannot read '/proc/self/mem': Input/output error") !=
        std::string::npos);
}

TEST_CASE("what is no file is not opened") {
  const private_directory folder;
  const std::string pipe = folder.path() + "/pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  // Whoever waits for a writer goes on waiting.
  std::atomic<bool> opened{false};
  std::thread reader([&] {
    const int fd = ::open(pipe.c_str(), O_RDONLY | O_CLOEXEC);
    opened = true;
    ::close(fd);
  });
  hvd::test::pause_for(0.1);
  CHECK(refusal(pipe, hvd::error::invalid_argument).find("is not a regular file") != std::string::npos);
  hvd::test::pause_for(0.1);
  CHECK(!opened);
  ::close(::open(pipe.c_str(), O_WRONLY | O_CLOEXEC));
  reader.join();
}

TEST_CASE("a full disk is reported once, leaves strict JSON, and the job goes on") {
  constexpr std::uint64_t events = 3000;
  const private_directory folder;
  const hvd::test::tiny_directory tiny(64 << 10);
  if (!tiny.problem().empty()) return hvd::test::skip(tiny.problem());
  const std::string path = tiny.path() + "/t.json";
  const std::string printed = errors_of(folder, [&](report& r) {
    Timeline t(path, of_rank(1, 4));
    const std::uint32_t w = t.tensor("w");
    for (int e = 0; e != events; ++e) t.tick(w, e);
    // One more append, so that it is seen to be reported once.
    const double limit = hvd::test::now() + 20;
    while (t.dropped() == 0 && hvd::test::now() < limit) hvd::test::pause_for(0.01);
    t.tick(w, 0);
    t.stop();
    const auto all = timeline_events(path);
    require(count(all, "X") + t.dropped() == events + 1 && t.dropped() != 0, "a wrong number");

    tiny.fill(std::filesystem::space(tiny.path()).available);
    try {
      Timeline(tiny.path() + "/other.json", of_rank(1, 4));
    } catch (const hvd::error& e) {
      require(e.kind() == hvd::error::system, e.what());
      require(std::string(e.what()).find("other.json': No space left on device; make room") != std::string::npos,
              e.what());
      r.progress = 1;
    }
    require(r.progress == 1, "no error without room for the header");
  });
  CHECK(printed == "hvd: timeline on rank 1 of 4: '" + path +
                       "' cannot be written: No space left on device; no more events are recorded\n");
}

TEST_CASE("a limit of file sizes is as a full disk, and no signal") {
  const private_directory folder;
  const std::string path = folder.path() + "/t.json";
  const std::string printed = errors_of(folder, [&](report&) {
    const rlimit limit{16384, 16384};
    require(::setrlimit(RLIMIT_FSIZE, &limit) == 0, "setrlimit");
    Timeline t(path, of_rank(0, 1));
    for (int e = 0; e != 1000; ++e) t.tick(t.tensor("w"), e);
    t.stop();
    require(count(timeline_events(path), "X") + t.dropped() == 1000 && t.dropped() != 0, "a wrong number");
  });
  CHECK(lines(printed) == 1);
  CHECK(printed.find("File too large; no more events") != std::string::npos);
}

TEST_CASE("who holds the lock for ever makes others wait for seconds only") {
  const private_directory folder;
  const std::string path = folder.path() + "/t.json", late = folder.path() + "/late.json";
  open_file(path);
  open_file(late);
  children starting(1);
  const held_lock first(path);
  starting.start(0, [&](report&) { Timeline(path, of_rank(2, 4)); });
  const std::string printed = errors_of(folder, [&](report&) {
    Timeline t(late, of_rank(2, 4));
    const held_lock second(late);
    t.tick(t.tensor("w"), 0);
    t.stop();
    require(t.dropped() == 1, "a wrong number");
  });
  CHECK(printed == "hvd: timeline on rank 2 of 4: '" + late +
                       "' cannot be written: another process holds its lock; no more events are recorded\n");
  REQUIRE(starting.wait(30.0));
  CHECK_MESSAGE(starting[0].is(hvd::error::timeout), starting[0].text());
  CHECK(starting[0].says("another process has held the lock of '" + path + "' for 5 seconds"));
}

TEST_CASE("a file that another job, or somebody, takes over is left to them") {
  const private_directory folder;
  const std::string path = folder.path() + "/t.json";
  const std::string printed = errors_of(folder, [&](report&) {
    Timeline old(path, of_rank(0, 1, "old"));
    Timeline young(path, of_rank(0, 1, "young"));
    young.tick(young.tensor("w"), 1);
    young.stop();
    const std::string before = contents(path);
    old.tick(old.tensor("w"), 2);
    old.stop();
    require(old.dropped() == 1 && contents(path) == before, "the file of the young was changed");
  });
  CHECK(lines(printed) == 1);
  CHECK(printed.find("another process has restarted or emptied it; no more events") != std::string::npos);
  CHECK(timeline_events(path).back()["name"] == "1");
}

TEST_CASE("a forked child records nothing, holds nothing, and may have a timeline of its own") {
  if (hvd::test::sanitized) return hvd::test::skip("a sanitizer's allocator may be locked by the writer at the fork");
  const private_directory folder;
  const std::string path = folder.path() + "/t.json";
  auto t = std::make_unique<Timeline>(path, of_rank(0, 2));
  const std::uint32_t w = t->tensor("w");
  t->tick(w, 1);
  children child(1);
  child.start(0, [&](report&) {
    for (const auto& fd : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code gone;
      require(std::filesystem::read_symlink(fd, gone) != path, "the file is open");
    }
    require(!t->active(), "active");
    t->tick(w, 2);
    require(t->tensor("new") == hvd::detail::timeline_names::unknown, "a name");
    t->stop();
    try {
      t->start(path, of_rank(0, 2));
      require(false, "started");
    } catch (const hvd::error& e) {
      require(e.kind() == hvd::error::invalid_argument, e.what());
    }
    t.reset();
    Timeline own(path, of_rank(1, 2));
    own.tick(own.tensor("w"), 3);
  });
  REQUIRE(child.wait(20.0));
  CHECK_MESSAGE(child.status(0) == 0, child[0].text());
  t->tick(w, 4);
  t->stop();
  std::multimap<int, std::string> ticks;
  for (const json& e : timeline_events(path)) {
    if (e["ph"] == "X") ticks.emplace(e["tid"], e["name"]);
  }
  CHECK(ticks == std::multimap<int, std::string>{{0, "1"}, {0, "4"}, {1, "3"}});
}

TEST_CASE("a browser reads the file while it grows") {
  std::string browser;
  for (const char* const name : {"chromium", "chromium-browser", "google-chrome"}) {
    if (browser.empty() && std::system((std::string("command -v ") + name + " >/dev/null 2>&1").c_str()) == 0)
      browser = name;
  }
  if (browser.empty())
    return hvd::test::skip("no chromium, which tools/setup --browser installs where the distribution has it");
  if (hvd::test::sanitized) return hvd::test::skip("a browser takes long, and shows nothing of this under a sanitizer");
  const private_directory folder;
  const std::string path = folder.path() + "/t.json";
  Timeline t(path, of_rank(0, 1));
  const std::uint32_t w = t.tensor("w");
  for (int e = 0; e != 1000; ++e) t.tick(w, e);
  const double limit = hvd::test::now() + 20;
  while (count(timeline_events(path), "X") != 1000 && hvd::test::now() < limit) hvd::test::pause_for(0.01);
  std::atomic<bool> shown = false;
  std::thread growing([&] {
    for (int e = 1000; !shown; ++e, hvd::test::pause_for(0.001)) t.tick(w, e);
  });
  // Without the lock a page may see the beginning of a write: as a user would, it then reads again.
  write(folder.path() + "/page.html", R"(<body><script>
for (let left = 5; left; --left) {
  const file = new XMLHttpRequest(); file.open('GET', 't.json', false); file.send();
  try {
    const ticks = JSON.parse(file.responseText).filter(e => e.ph == 'X').map(e => Number(e.name));
    document.body.textContent = 'ticks: ' + ticks.length + (ticks.every((t, i) => t == i) ? ' in order' : ' mixed up');
    break;
  } catch (e) { document.body.textContent = e; }
}
</script>)");
  const std::string shell =
      "timeout 120 " + browser + " --headless --no-sandbox --disable-gpu --disable-dev-shm-usage" +
      " --allow-file-access-from-files --user-data-dir=" + folder.path() + "/profile --dump-dom file://" +
      folder.path() + "/page.html >" + folder.path() + "/dom 2>" + folder.path() + "/log";
  const int status = std::system(shell.c_str());
  shown = true;
  growing.join();
  t.stop();
  const std::string dom = contents(folder.path() + "/dom");
  CAPTURE(dom);
  REQUIRE(status == 0);
  const std::size_t at = dom.find("ticks: ");
  REQUIRE(at != std::string::npos);
  CHECK(std::stoul(dom.substr(at + 7)) >= 1000);
  CHECK(dom.find(" in order") != std::string::npos);
}
