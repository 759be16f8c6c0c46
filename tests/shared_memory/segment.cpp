// The file in memory that processes share: hvd/shared_memory/segment.hpp and fork_guard.hpp.
#include <hvd/shared_memory/segment.hpp>

#include "support/processes.hpp"
#include "support/refusals.hpp"
#include "support/require.hpp"
#include "support/skip.hpp"
#include "support/tiny_directory.hpp"

#include <doctest/doctest.h>

#include <fstream>
#include <set>
#include <utility>
#include <vector>

namespace {

using hvd::error_kind;
using hvd::detail::segment;
using hvd::test::children;
using hvd::test::pause_for;
using hvd::test::private_directory;
using hvd::test::report;
using hvd::test::require;

template <class F>
std::string refused(error_kind kind, F&& f) {
  try {
    f();
  } catch (const hvd::error& e) {
    return e.kind() == kind ? e.what() : "another kind: " + std::string(e.what());
  }
  return "no error";
}

std::optional<segment> open(const private_directory& d, std::string& why, std::size_t least = 0) {
  return segment::open(d.path(), "s", least, why);
}

TEST_CASE("a segment has no file before it is published and none after unlink; the memory stays") {
  const private_directory d;
  std::string why;
  segment s = segment::make(d.path(), "s", 10'000, 10'000);
  CHECK(d.empty());
  CHECK(!open(d, why));
  CHECK(why.empty());
  CHECK(s.publish());
  struct stat st {};
  CHECK(::stat((d.path() + "/s").c_str(), &st) == 0);
  CHECK((st.st_mode & 07777) == 0600);
  CHECK(st.st_size == 10'000);
  auto other = open(d, why);
  REQUIRE(other);
  s.data()[9'999] = std::byte{42};
  CHECK(other->data()[9'999] == std::byte{42});
  CHECK(other->bytes() == 10'000);
  s.unlink();
  CHECK(d.empty());
  other->unlink();  // once more is no harm
  other->data()[0] = std::byte{7};
  CHECK(s.data()[0] == std::byte{7});
}

TEST_CASE("a name is given once, and only its segment takes it away") {
  const private_directory d;
  const segment first = segment::make(d.path(), "s", 4096, 0), second = segment::make(d.path(), "s", 4096, 0);
  CHECK(first.publish());
  CHECK(!second.publish());
  second.unlink();
  CHECK(!d.empty());
  first.unlink();
  CHECK(second.publish());
  first.unlink();
  CHECK(!d.empty());
}

TEST_CASE("a name is removed though a process is killed that was about to remove it") {
  const private_directory d;
  segment s = segment::make(d.path(), "s", 4096, 0);
  REQUIRE(s.publish());
  children remover(1);
  remover.start(0, [&](report& mine) {
    std::string why;
    const auto own = open(d, why);
    require(own && own->lock(segment::creator_byte + 1), "the lock of the name");
    mine.progress = 1;
    pause_for(0.02);
    ::kill(::getpid(), SIGKILL);
  });
  REQUIRE(remover.wait_while(20.0, [&] { return remover[0].progress == 0; }));
  s.unlink();
  CHECK(d.empty());
  CHECK(remover.wait(20.0));
}

TEST_CASE("locks belong to a segment object: others see them, in this process and in others") {
  const private_directory d;
  std::string why;
  const segment s = segment::make(d.path(), "s", 4096, 0);
  CHECK(s.publish());
  const auto other = open(d, why);
  CHECK(s.lock(3));
  CHECK(other->locked(3));
  CHECK(!other->lock(3));
  CHECK(!s.locked(3));  // its own
  CHECK(s.lock(3));     // again is no harm
  CHECK(other->lock(4));
  CHECK(s.locked(4));
  {
    auto gone = open(d, why);
    CHECK(gone->lock(5));
    CHECK(s.locked(5));
  }
  CHECK(!s.locked(5));
  CHECK(!s.locked(segment::creator_byte));
}

TEST_CASE("where the system refuses locks: an error that says so, and a name is removed all the same") {
  const private_directory d;
  const segment s = segment::make(d.path(), "s", 4096, 4096);
  REQUIRE(s.lock(0));
  REQUIRE(s.publish());
  hvd::test::locks_left = 0;
  const std::string why = refused(error_kind::system, [&] { (void)s.lock(1); });
  s.unlink();
  hvd::test::locks_left = -1;
  CHECK(why == "hvd: cannot lock " + d.path() + "/s: No locks available");
  CHECK(d.empty());
}

TEST_CASE("a killed process lets go of its locks, whether it has children, threads or neither") {
  for (const int with : {0, 1, 2}) {
    const private_directory d;
    const segment s = segment::make(d.path(), "s", 4096, 4096);
    REQUIRE(s.publish());
    children holder(1);
    holder.start(0, [&](report& mine) {
      std::string why;
      auto own = open(d, why);
      require(own.has_value() && own->lock(1), "no lock");
      own->on_fork([](void*) {}, nullptr);
      if (with == 1) {
        const pid_t orphan = ::fork();
        if (orphan == 0) {
          pause_for(30.0);
          ::_exit(0);
        }
        mine.culprit = static_cast<int>(orphan);
      }
      std::optional<std::thread> other;
      if (with == 2) other.emplace([] { pause_for(30.0); });
      mine.progress = 1;
      pause_for(30.0);
    });
    REQUIRE(holder.wait_while(20.0, [&] { return holder[0].progress == 0; }));
    CHECK(s.locked(1));
    holder.kill(0);
    CHECK(holder.wait_while(1.0, [&] { return s.locked(1); }));
    if (with == 1) {
      CHECK(::kill(holder[0].culprit, 0) == 0);
      ::kill(holder[0].culprit, SIGKILL);
    }
  }
}

TEST_CASE("a forked child has neither the memory nor the descriptors, and its parent's objects do nothing in it") {
  const private_directory d;
  segment s = segment::make(d.path(), "s", 4096, 4096);
  REQUIRE(s.publish());
  REQUIRE(s.lock(0));
  static int told = 0;
  s.on_fork([](void* to) { ++*static_cast<int*>(to); }, &told);
  children child(1);
  child.start(0, [&](report& mine) {
    mine.progress = told;
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) require(line.find(d.path()) == std::string::npos, line);
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code gone;
      const std::string to = std::filesystem::read_symlink(entry.path(), gone);
      require(!to.starts_with(d.path()), to);
    }
    const segment end = std::move(s);
  });
  REQUIRE(child.wait(20.0));
  CAPTURE(child[0].text());
  CHECK(child.status(0) == 0);
  CHECK(child[0].progress == 1);
  CHECK(told == 0);
  std::string why;
  CHECK(open(d, why)->locked(0));
  s.data()[0] = std::byte{1};
}

TEST_CASE("reserve backs memory or says why not") {
  const hvd::test::tiny_directory tiny(16 * 4096);
  if (!tiny.problem().empty()) return hvd::test::skip(tiny.problem());
  const segment s = segment::make(tiny.path(), "s", 100 * 4096, 4096);
  s.reserve(4096, 4 * 4096);
  s.data()[5 * 4096 - 1] = std::byte{1};
  const std::string said = refused(error_kind::no_memory, [&] { s.reserve(10 * 4096, 40 * 4096); });
  CHECK(said.find("163840 bytes wanted") != std::string::npos);
  CHECK(said.find(tiny.path()) != std::string::npos);
  CHECK(said.find("bytes free there") != std::string::npos);
  CHECK(said.ends_with("; make it larger or name another directory in memory"));  // no staging memory
  CHECK(said.find("(HVD_SHM_DIR or memory_policy::directory)") != std::string::npos);
  CHECK(refused(error_kind::no_memory, [&] {
          segment::make(tiny.path(), "t", 4096 * 100, 4096 * 100, true);
        }).ends_with("; make it larger, set memory_policy::staging_bytes lower, or name another directory in memory"));
  s.reserve(10 * 4096, 4 * 4096);  // what failed took nothing
  CHECK(refused(error_kind::no_memory, [&] {
          segment::make(tiny.path(), "t", 4096 * 100, 4096 * 100);
        }).starts_with("hvd: cannot reserve shared memory in "));
  CHECK(segment::trouble_in(tiny.path(), 4096) == 0);
  CHECK(segment::trouble_in(tiny.path(), 4096 * 17) == ENOSPC);
  CHECK(segment::trouble_in(tiny.path() + "/none", 1) == ENOENT);
}

TEST_CASE("a directory that is not there: the error says who named it") {
  CHECK(refused(error_kind::system, [] { segment::make("/nowhere", "s", 4096, 0); }) ==
        "hvd: cannot make shared memory in /nowhere (HVD_SHM_DIR or memory_policy::directory): 4096 bytes wanted: No "
        "such file or directory; name another directory in memory, where this user may write");
}

TEST_CASE("beyond the limit on file sizes: that limit is named, and no larger directory is asked for") {
  const private_directory d;
  children one(1);
  one.start(0, [&](report&) {
    const rlimit limit{4096, 4096};
    require(::setrlimit(RLIMIT_FSIZE, &limit) == 0, "setrlimit");
    for (const bool staging : {false, true}) {
      const std::string said =
          refused(error_kind::no_memory, [&] { segment::make(d.path(), "s", 8192, 4096, staging); });
      const std::string wanted =
          "8192 bytes wanted: File too large; the limit on file sizes (ulimit -f) is lower: raise it";
      require(said.ends_with(wanted + (staging ? ", or set memory_policy::staging_bytes lower" : "")), said);
    }
  });
  REQUIRE(one.wait(20.0));
  CAPTURE(one[0].text());
  CHECK(one.status(0) == 0);
}

TEST_CASE("memory that signals interrupt is reserved in parts, each as large as comes through") {
  constexpr off_t kib = 1024, mib = 1024 * kib;
  std::vector<std::pair<off_t, off_t>> done;
  int interruptions = 0;
  const auto up_to = [&](off_t most) {
    return [&, most](off_t at, off_t bytes) {
      if (bytes > most) return ++interruptions, EINTR;
      done.emplace_back(at, bytes);
      return 0;
    };
  };
  CHECK(hvd::detail::allocate_despite_signals(4096, 5 * mib, up_to(8 * mib)) == 0);
  CHECK(done == std::vector<std::pair<off_t, off_t>>{{4096, 5 * mib}});
  CHECK(interruptions == 0);
  done.clear();
  CHECK(hvd::detail::allocate_despite_signals(4096, 5 * mib, up_to(2 * mib)) == 0);
  CHECK(interruptions == 2);
  CHECK(done == std::vector<std::pair<off_t, off_t>>{{4096, 1280 * kib},
                                                     {4096 + 1280 * kib, 1280 * kib},
                                                     {4096 + 2560 * kib, 1280 * kib},
                                                     {4096 + 3840 * kib, 1280 * kib}});
  done.clear();
  interruptions = 0;
  CHECK(hvd::detail::allocate_despite_signals(0, mib, up_to(64 * kib)) == 0);
  CHECK(interruptions == 4);
  CHECK(done.size() == 16);
  CHECK(hvd::detail::allocate_despite_signals(0, mib, [](off_t, off_t) { return ENOSPC; }) == ENOSPC);
}

TEST_CASE("open refuses what is too short") {
  const private_directory d;
  std::string why;
  std::ofstream(d.path() + "/s") << "short";
  ::chmod((d.path() + "/s").c_str(), 0600);
  CHECK(!open(d, why, 4096));
  CHECK(why == d.path() + "/s is truncated: 5 bytes");
}

TEST_CASE("file names are plain, and distinct for distinct jobs") {
  std::set<std::string> names;
  for (const std::string& job : {std::string("a"), std::string("a "), std::string("a_"), std::string("../a"),
                                 std::string(500, 'a'), std::string(501, 'a'), std::string("\0a", 2)}) {
    const std::string name = hvd::detail::segment_name(job);
    CHECK(name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-_") == std::string::npos);
    CHECK(name.size() < 120);
    CHECK(name.starts_with("hvd-" + std::to_string(::geteuid()) + "-"));
    names.insert(name);
  }
  CHECK(names.size() == 7);
}

}  // namespace
