// tests/topology.cpp: hosts made of files, and the one that the test runs on.
#include <hvd/topology.hpp>

#include <doctest/doctest.h>

#include <sched.h>
#include <stdlib.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>
#include <numeric>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

namespace {

using cpus = std::vector<int>;

cpus range(int first, int last) {
  cpus all(static_cast<std::size_t>(last - first + 1));
  std::iota(all.begin(), all.end(), first);
  return all;
}

// A folder that looks like a host's root.
class FakeHost {
 public:
  FakeHost() {
    std::string pattern = (std::filesystem::temp_directory_path() / "hvd-topology-XXXXXX").string();
    REQUIRE(mkdtemp(pattern.data()) != nullptr);
    root_ = pattern;
  }
  FakeHost(const FakeHost&) = delete;
  FakeHost& operator=(const FakeHost&) = delete;
  ~FakeHost() {
    std::error_code ignored;
    std::filesystem::remove_all(root_, ignored);
  }

  FakeHost& file(const std::string& path, std::string_view text) {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
    return *this;
  }
  FakeHost& folder(const std::string& path) {
    std::filesystem::create_directories(root_ / path);
    return *this;
  }
  FakeHost& cache(int cpu, int index, int level, std::string_view type, std::string_view size,
                  std::string_view shared) {
    const std::string at =
        "sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/cache/index" + std::to_string(index) + "/";
    return file(at + "level", std::to_string(level) + "\n")
        .file(at + "type", std::string(type) + "\n")
        .file(at + "size", std::string(size) + "\n")
        .file(at + "coherency_line_size", "64\n")
        .file(at + "shared_cpu_list", std::string(shared) + "\n");
  }
  // The usual four caches: private first and second level, a third shared by `shared`.
  FakeHost& caches(int cpu, std::string_view l3, std::string_view shared) {
    const std::string own = std::to_string(cpu);
    return cache(cpu, 0, 1, "Data", "32K", own)
        .cache(cpu, 1, 1, "Instruction", "64K", own)
        .cache(cpu, 2, 2, "Unified", "1024K", own)
        .cache(cpu, 3, 3, "Unified", l3, shared);
  }
  FakeHost& core(int cpu, int socket, int id) {
    const std::string at = "sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
    return file(at + "physical_package_id", std::to_string(socket) + "\n")
        .file(at + "core_id", std::to_string(id) + "\n");
  }
  [[nodiscard]] std::string root() const { return root_.string() + "/"; }
  hvd::topology read(const cpus& ids) const { return hvd::topology::of(ids, root_.string()); }

 private:
  std::filesystem::path root_;
};

doctest::String complaint_about(std::string_view list) {
  try {
    static_cast<void>(hvd::parse_cpu_list(list));
  } catch (const hvd::error& e) {
    return e.kind() == hvd::error_kind::invalid_argument ? e.what() : "another kind of error";
  }
  return "accepted";
}

constexpr double no_limit = std::numeric_limits<double>::infinity();

}  // namespace

TEST_CASE("topology: CPU lists") {
  CHECK(hvd::parse_cpu_list("") == cpus{});
  CHECK(hvd::parse_cpu_list("5") == cpus{5});
  CHECK(hvd::parse_cpu_list("0-3,8") == cpus{0, 1, 2, 3, 8});
  CHECK(hvd::parse_cpu_list("8,0-1,1-2,8") == cpus{0, 1, 2, 8});
  CHECK(hvd::parse_cpu_list("7-7") == cpus{7});
  CHECK(hvd::parse_cpu_list("1048575") == cpus{1048575});
  CHECK(hvd::parse_cpu_list("0-4095").size() == 4096);
}

TEST_CASE("topology: a CPU list takes the memory of its CPUs, however often it names them") {
  std::string text = "0-9999";
  for (int i = 0; i != 400; ++i) text += ",0-9999";
  const cpus all = hvd::parse_cpu_list(text);
  CHECK(all == range(0, 9999));
  CHECK(all.capacity() < 2 * all.size());
}

TEST_CASE("topology: a wrong CPU list is named, with the place") {
  CHECK(complaint_about("0-x") == "hvd: CPU list \"0-x\", character 3: no number; allowed: numbers and ranges "
                                  "from 0 to 1048575, such as \"0-3,8\"");
  for (const char* text : {"x", "-", "-1", ",", ",1", "1,,2", "1-", "1--2", " 1", "1-,2", "0x1-"})
    CHECK(complaint_about(text) == doctest::Contains("CPU list \""));
  CHECK(complaint_about("3-1") == doctest::Contains("range ends before it begins"));
  CHECK(complaint_about("1,") == doctest::Contains("character 3: nothing after ','"));
  CHECK(complaint_about("1\n") == doctest::Contains("character 2: neither ',' nor '-'"));
  CHECK(complaint_about("0-7:2/4") == doctest::Contains("neither ',' nor '-'"));
  CHECK(complaint_about("1048576") == doctest::Contains("number too large"));
  CHECK(complaint_about("0-99999999999999999999") == doctest::Contains("number too large"));
}

TEST_CASE("topology: a host that tells nothing has unknown caches and no quota") {
  const FakeHost host;
  const hvd::topology t = host.read({0, 1, 2});
  CHECK(t.cpus == 3);
  CHECK(t.cpu_ids == cpus{0, 1, 2});
  CHECK(t.quota == no_limit);
  CHECK(t.cache_line + t.l1d + t.l2 + t.l3 == 0);
  CHECK(t.l3_sharers == 0);
  CHECK(t.l3_domains == std::vector<cpus>{{0, 1, 2}});
  CHECK(t.numa_nodes == std::vector<hvd::topology::numa_node>{{-1, {0, 1, 2}}});
}

TEST_CASE("topology: without affinity the number of CPUs is the library's guess") {
  const hvd::topology t = FakeHost().read({});
  CHECK(t.cpus == std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
  CHECK(t.cpu_ids.empty());
  CHECK(t.l3_domains.empty());
  CHECK(t.numa_nodes.empty());
}

TEST_CASE("topology: CPU numbers come in any order") { CHECK(FakeHost().read({3, 1, 3, 2}).cpu_ids == cpus{1, 2, 3}); }

TEST_CASE("topology: caches and domains of a two-socket host") {
  FakeHost host;
  for (int cpu = 0; cpu < 4; ++cpu) host.caches(cpu, "32768K", "0-3,8-11");
  for (int cpu = 4; cpu < 8; ++cpu) host.caches(cpu, "16M", "4-7");
  host.file("sys/devices/system/node/online", "0-1,5\n")
      .file("sys/devices/system/node/node0/cpulist", "0-3,8-11\n")
      .file("sys/devices/system/node/node1/cpulist", "4-7\n")
      .file("sys/devices/system/node/node5/cpulist", "\n");  // memory only

  const hvd::topology t = host.read(range(0, 7));
  CHECK(t.cpus == 8);
  CHECK(t.cache_line == 64);
  CHECK(t.l1d == 32u << 10);
  CHECK(t.l2 == 1u << 20);
  CHECK(t.l3 == 16u << 20);  // the least
  CHECK(t.l3_sharers == 8);  // the most, usable or not
  CHECK(t.l3_domains == std::vector<cpus>{{0, 1, 2, 3}, {4, 5, 6, 7}});
  CHECK(t.numa_nodes == std::vector<hvd::topology::numa_node>{{0, {0, 1, 2, 3}}, {1, {4, 5, 6, 7}}});

  SUBCASE("of which only some may be used") {
    const hvd::topology some = host.read({2, 9});
    CHECK(some.cpus == 2);
    CHECK(some.l3 == 32u << 20);
    CHECK(some.l3_domains == std::vector<cpus>{{2, 9}});
    CHECK(some.numa_nodes == std::vector<hvd::topology::numa_node>{{0, {2, 9}}});
  }
}

TEST_CASE("topology: without a third level the last one makes the domains") {
  FakeHost host;
  for (int cpu = 0; cpu < 4; ++cpu)
    host.cache(cpu, 0, 1, "Data", "48K", std::to_string(cpu))
        .cache(cpu, 1, 2, "Unified", "2M", cpu < 2 ? "0-1" : "2-3");
  const hvd::topology t = host.read(range(0, 3));
  CHECK(t.l1d == 48u << 10);
  CHECK(t.l2 == 2u << 20);
  CHECK(t.l3 == 0);
  CHECK(t.l3_sharers == 0);
  CHECK(t.l3_domains == std::vector<cpus>{{0, 1}, {2, 3}});
}

TEST_CASE("topology: CPUs without a known cache come last, together") {
  FakeHost host;
  host.caches(1, "8M", "1,3").caches(2, "8M", "garbage").caches(4, "8M", "0");  // 4 is not in its own list
  const hvd::topology t = host.read(range(0, 4));
  CHECK(t.l3_domains == std::vector<cpus>{{1, 3}, {0, 2, 4}});
}

TEST_CASE("topology: sizes that are no sizes are unknown") {
  for (const char* size : {"", "K", "32k", "32KB", "-1K", "99999999999999999999999G", "18446744073709551615G", "big"}) {
    FakeHost host;
    host.caches(0, size, "0");
    const hvd::topology t = host.read({0});
    CAPTURE(size);
    CHECK(t.l3 == 0);
    CHECK(t.l2 == 1u << 20);
    CHECK(t.l3_domains == std::vector<cpus>{{0}});
  }
  FakeHost host;
  host.caches(0, "12288", "0");
  CHECK(host.read({0}).l3 == 12288);
}

TEST_CASE("topology: a folder in place of a file is unknown, not an exception") {
  FakeHost host;
  host.folder("proc/self/cgroup").folder("proc/self/mountinfo").folder("sys/devices/system/node/online");
  host.folder("sys/devices/system/cpu/cpu0/cache/index0/level");
  const hvd::topology t = host.read({0});
  CHECK(t.cpus == 1);
  CHECK(t.quota == no_limit);
}

TEST_CASE("topology: nodes beyond what Linux can have are not looked for") {
  FakeHost host;
  host.file("sys/devices/system/node/online", "1023-1024\n")
      .file("sys/devices/system/node/node1023/cpulist", "0\n")
      .file("sys/devices/system/node/node1024/cpulist", "1\n");
  CHECK(host.read({0, 1}).numa_nodes == std::vector<hvd::topology::numa_node>{{1023, {0}}, {-1, {1}}});
}

TEST_CASE("topology: NUMA files that contradict each other put no CPU into two nodes") {
  FakeHost host;
  host.file("sys/devices/system/node/online", "0-2\n")
      .file("sys/devices/system/node/node0/cpulist", "0-2\n")
      .file("sys/devices/system/node/node1/cpulist", "2-3\n");
  CHECK(host.read(range(0, 4)).numa_nodes ==
        std::vector<hvd::topology::numa_node>{{0, {0, 1, 2}}, {1, {3}}, {-1, {4}}});
}

TEST_CASE("topology: version 2 quota is the least on the way up, rounded up to CPUs") {
  FakeHost host;
  host.file("proc/self/cgroup", "0::/batch.slice/job/rank\n")
      .file("sys/fs/cgroup/batch.slice/job/cpu.max", "150000 100000\n")
      .file("sys/fs/cgroup/batch.slice/cpu.max", "400000 100000\n");
  SUBCASE("limits at a parent") {
    host.file("sys/fs/cgroup/batch.slice/job/rank/cpu.max", "max 100000\n");
    CHECK(host.read(range(0, 7)).quota == doctest::Approx(1.5));
    CHECK(host.read(range(0, 7)).cpus == 2);
    CHECK(host.read({0}).cpus == 1);
  }
  SUBCASE("the group itself is lowest") {
    host.file("sys/fs/cgroup/batch.slice/job/rank/cpu.max", "10000 100000\n");
    CHECK(host.read(range(0, 7)).quota == doctest::Approx(0.1));
    CHECK(host.read(range(0, 7)).cpus == 1);
  }
  SUBCASE("the mount's root counts: in a container it is the container") {
    host.file("sys/fs/cgroup/cpu.max", "100000 100000\n");
    CHECK(host.read(range(0, 7)).cpus == 1);
  }
  SUBCASE("more quota than CPUs") {
    CHECK(host.file("sys/fs/cgroup/batch.slice/job/cpu.max", "max 100000\n").read({0, 1}).cpus == 2);
  }
}

TEST_CASE("topology: version 1 quota") {
  FakeHost host;
  host.file("proc/self/cgroup", "12:memory:/job\n4:cpuset:/\n3:cpu,cpuacct:/job\n1:name=systemd:/\n");
  SUBCASE("at the usual place") {
    host.file("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "250000\n")
        .file("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
    CHECK(host.read(range(0, 7)).quota == doctest::Approx(2.5));
    CHECK(host.read(range(0, 7)).cpus == 3);
  }
  SUBCASE("-1 is no limit") {
    host.file("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "-1\n")
        .file("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
    CHECK(host.read(range(0, 7)).quota == no_limit);
  }
  SUBCASE("the path is the host's, the files are the container's") {
    host.file("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000\n").file("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    CHECK(host.read(range(0, 7)).quota == doctest::Approx(0.5));
  }
}

TEST_CASE("topology: the mount table says where groups are, and which is the root") {
  FakeHost host;
  host.file("proc/self/cgroup", "2:cpu:/docker/abc/child\n0::/x\n")
      .file("proc/self/mountinfo",
            "30 23 0:27 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
            "31 30 0:28 /docker/abc /groups/cpu rw,relatime shared:5 - cgroup cgroup rw,cpu,cpuacct\n"
            "32 30 0:29 / /groups/memory rw - cgroup cgroup rw,memory\n"
            "33 30 0:30 / /groups/two rw - cgroup2 cgroup2 rw\n"
            "garbage\n\n34 30 0:31 / - - - -\n")
      .file("groups/cpu/child/cpu.cfs_quota_us", "300000\n")
      .file("groups/cpu/child/cpu.cfs_period_us", "100000\n")
      .file("groups/memory/cpu.cfs_quota_us", "100000\n")
      .file("groups/memory/cpu.cfs_period_us", "100000\n");
  CHECK(host.read(range(0, 7)).quota == doctest::Approx(3.0));
  CHECK(host.file("groups/two/x/cpu.max", "200000 100000\n").read(range(0, 7)).quota == doctest::Approx(2.0));
}

TEST_CASE("topology: a group outside of the namespace does not lead out of the mount") {
  FakeHost host;
  host.file("proc/self/cgroup", "0::/../../other\n")
      .file("sys/fs/cgroup/cpu.max", "200000 100000\n")
      .file("sys/other/cpu.max", "1000 100000\n");
  CHECK(host.read(range(0, 7)).quota == doctest::Approx(2.0));
}

TEST_CASE("topology: quotas that are no quotas limit nothing") {
  for (const char* text :
       {"", "max", "100000", "0 100000", "100000 0", "-5 100000", "a b", "nan nan", "inf inf", "1 2 3"}) {
    FakeHost host;
    host.file("proc/self/cgroup", "0::/\n").file("sys/fs/cgroup/cpu.max", text);
    CAPTURE(text);
    CHECK(host.read(range(0, 7)).quota == no_limit);
    CHECK(host.read(range(0, 7)).cpus == 8);
  }
  for (const char* text : {"", "0", ":", "::", "0::", "no colon\n\n", "0::relative"}) {
    FakeHost host;
    CAPTURE(text);
    CHECK(host.file("proc/self/cgroup", text).read({0}).quota == no_limit);
  }
}

TEST_CASE("topology: affinity masks grow past 1024 CPUs") {
  std::vector<std::size_t> tried;
  const auto kernel = [&](int, std::size_t bytes, unsigned long* words) {
    tried.push_back(bytes);
    if (bytes < 8192 / 8) {
      errno = EINVAL;
      return -1;
    }
    constexpr std::size_t bits = std::numeric_limits<unsigned long>::digits;
    for (const std::size_t cpu : {std::size_t{0}, std::size_t{1023}, std::size_t{1024}, std::size_t{5000}})
      words[cpu / bits] |= 1ul << cpu % bits;
    return 0;
  };
  CHECK(hvd::detail::read_affinity(0, kernel) == cpus{0, 1023, 1024, 5000});
  CHECK(tried == std::vector<std::size_t>{128, 256, 512, 1024});

  const auto refusing = [](int error) {
    return [error](int, std::size_t, unsigned long*) { return errno = error, -1; };
  };
  CHECK(hvd::detail::read_affinity(0, refusing(EPERM)).empty());
  CHECK(hvd::detail::read_affinity(0, refusing(EINVAL)).empty());  // for ever: ends all the same
}

TEST_CASE("topology: this host") {
  const hvd::topology& t = hvd::host();
  CHECK(&t == &hvd::host());
  CHECK(t.cpus >= 1);
  CHECK(t.quota > 0.0);
  CHECK(std::is_sorted(t.cpu_ids.begin(), t.cpu_ids.end()));
  if (!t.cpu_ids.empty()) CHECK(t.cpus <= static_cast<int>(t.cpu_ids.size()));
  cpus in_domains, in_nodes;
  for (const cpus& domain : t.l3_domains) in_domains.insert(in_domains.end(), domain.begin(), domain.end());
  for (const auto& node : t.numa_nodes) in_nodes.insert(in_nodes.end(), node.cpus.begin(), node.cpus.end());
  std::sort(in_domains.begin(), in_domains.end());
  std::sort(in_nodes.begin(), in_nodes.end());
  CHECK(in_domains == t.cpu_ids);
  CHECK(in_nodes == t.cpu_ids);
}

TEST_CASE("topology: a pinned thread does not make the process smaller") {
  const cpus before = hvd::topology::of_this_process().cpu_ids;
  REQUIRE_FALSE(before.empty());
  cpus inside;
  std::thread([&] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<std::size_t>(before.front()), &one);
    if (before.front() < CPU_SETSIZE) sched_setaffinity(0, sizeof(one), &one);
    inside = hvd::topology::of_this_process().cpu_ids;
  }).join();
  CHECK(inside == before);
}

TEST_CASE("topology: host() is asked from many threads at once") {
  std::vector<const hvd::topology*> seen(8);
  std::vector<std::thread> threads;
  for (auto& slot : seen) threads.emplace_back([&slot] { slot = &hvd::host(); });
  for (auto& thread : threads) thread.join();
  CHECK(std::count(seen.begin(), seen.end(), &hvd::host()) == 8);
}

TEST_CASE("topology: cores, by socket, NUMA node and core") {
  const auto cores_of = [](const FakeHost& fake, const cpus& ids) {
    hvd::topology host = fake.read(ids);
    hvd::detail::read_cores(host, fake.root() + "sys/devices/system/cpu/");
    return host.cores;
  };
  // Two sockets of two cores with two threads each, numbered as Linux does.
  FakeHost two;
  for (int cpu = 0; cpu != 8; ++cpu) two.core(cpu, cpu % 4 / 2, cpu % 2);
  CHECK(cores_of(two, range(0, 7)) == std::vector<cpus>{{0, 4}, {1, 5}, {2, 6}, {3, 7}});
  CHECK(cores_of(two, {2, 3, 6}) == std::vector<cpus>{{2, 6}, {3}});
  // One socket whose nodes have every other core.
  FakeHost woven;
  woven.file("sys/devices/system/node/online", "0-1\n");
  woven.file("sys/devices/system/node/node0/cpulist", "0,2\n").file("sys/devices/system/node/node1/cpulist", "1,3\n");
  for (int cpu = 0; cpu != 4; ++cpu) woven.core(cpu, 0, cpu);
  CHECK(cores_of(woven, range(0, 3)) == std::vector<cpus>{{0}, {2}, {1}, {3}});
  CHECK(cores_of(FakeHost(), {0, 1}) == std::vector<cpus>{{0}, {1}});
}

namespace {

// A driver with three GPUs, of which the last is a MIG instance and the second fails.
hvd::detail::cuda_driver three_gpus() {
  hvd::detail::cuda_driver cuda;
  cuda.device_count = [](int* count) { return *count = 3, 0; };
  cuda.device_get = [](int* device, int ordinal) { return *device = ordinal, ordinal == 1 ? 101 : 0; };
  cuda.device_uuid = [](hvd::detail::cu_uuid* uuid, int device) {
    for (std::size_t i = 0; i != 16; ++i)
      uuid->bytes[i] = static_cast<unsigned char>(0x89 + 16 * static_cast<std::size_t>(device) + i);
    return 0;
  };
  cuda.device_name = [](char* text, int length, int device) {
    return std::snprintf(text, static_cast<std::size_t>(length), "NVIDIA H200%s", device == 2 ? " MIG 1g.18gb" : ""), 0;
  };
  cuda.device_pci = [](char* text, int length, int device) {
    return std::snprintf(text, static_cast<std::size_t>(length), "0000:%X:00.0", 0x1b + device), 0;
  };
  cuda.device_memory = [](std::size_t* bytes, int) { return *bytes = 141, 0; };
  cuda.device_attribute = [](int* value, int attribute, int) { return *value = attribute == 134 ? 1 : 7, 0; };
  return cuda;
}

}  // namespace

TEST_CASE("topology: GPUs from the driver, their nodes from sysfs") {
  FakeHost fake;
  fake.file("sys/bus/pci/devices/0000:1b:00.0/numa_node", "1\n")
      .file("sys/bus/pci/devices/0000:1b:00.0/local_cpulist", "4-7\n");
  fake.file("sys/bus/pci/devices/0000:1d:00.0/numa_node", "-1\n")
      .file("sys/bus/pci/devices/0000:1d:00.0/local_cpulist", "0-7\n");
  const auto gpus = hvd::detail::read_gpus(three_gpus(), fake.root());
  REQUIRE(gpus.size() == 3);
  CHECK(gpus[0] == hvd::gpu{.ordinal = 0,
                            .uuid = "GPU-898a8b8c-8d8e-8f90-9192-939495969798",
                            .pci = "0000:1b:00.0",
                            .name = "NVIDIA H200",
                            .numa_node = 1,
                            .cpus = range(4, 7),
                            .memory = 141});
  CHECK(gpus[1] == hvd::gpu{.ordinal = 1});
  CHECK(gpus[2].uuid == "MIG-a9aaabac-adae-afb0-b1b2-b3b4b5b6b7b8");
  CHECK(gpus[2].numa_node == -1);  // the host does not say: no CPUs are near
  CHECK(gpus[2].cpus.empty());
  // A container without PCI devices in its sysfs: the driver knows the node.
  FakeHost container;
  container.file("sys/devices/system/node/node1/cpulist", "2-3\n");
  CHECK(hvd::detail::read_gpus(three_gpus(), container.root())[0].numa_node == 1);
  CHECK(hvd::detail::read_gpus(three_gpus(), container.root())[0].cpus == cpus{2, 3});
}

TEST_CASE("topology: PCI addresses as sysfs writes them") {
  CHECK(hvd::detail::pci_address("0000:1B:00.0") == "0000:1b:00.0");
  CHECK(hvd::detail::pci_address("00000000:1B:00.0") == "0000:1b:00.0");
  CHECK(hvd::detail::pci_address("00010000:1B:00.0") == "10000:1b:00.0");
  CHECK(hvd::detail::pci_address("1b:00.0") == "0000:1b:00.0");
  CHECK(hvd::detail::pci_address("7") == "7");
}
