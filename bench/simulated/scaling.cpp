// bench/simulated/scaling.cpp: simulates collectives of many ranks and prints how long they take, one JSON object a
// line.
#include <bench/backends/algorithms.hpp>
#include <bench/backends/calls.hpp>
#include <bench/simulated/engine.hpp>
#include <bench/sizes.hpp>

#include <hvd/hierarchical.hpp>
#include <hvd/transport/simulated.hpp>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <chrono>
#include <cstddef>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include <sys/mman.h>

namespace hvd::bench {
namespace {

/// All that are one call of hvd.
std::vector<collective> kinds() {
  std::vector<collective> found;
  for (std::size_t k = 0; k != collective_names.size(); ++k) {
    const auto kind = static_cast<collective>(k);
    if (has_model(kind)) continue;
    with_call(call{.kind = kind}, 1, reduction(), [&](const auto&) { found.push_back(kind); });
  }
  return found;
}

struct usage_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// One simulation: a collective on floats, of `bytes` in all blocks together.
struct scaling_case {
  collective kind{};
  any_algorithm how{};
  std::string algorithm{};
  int ranks = 0;
  std::size_t bytes = 0;
};

/// Memory that all ranks use at once: its contents do not matter, but some algorithms copy their own block, so it
/// has to be there.
class common_memory {
 public:
  explicit common_memory(std::size_t bytes)
      : bytes_(bytes + 1),
        data_(::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    if (data_ == MAP_FAILED) throw error(error_kind::no_memory, "cannot map " + size_text(bytes_));
  }
  common_memory(const common_memory&) = delete;
  common_memory& operator=(const common_memory&) = delete;
  ~common_memory() { ::munmap(data_, bytes_); }
  [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  std::size_t bytes_;
  void* data_;
};

/// hvd::Hierarchical as an algorithm: a collective of the groups that it makes of the ranks of each host.
struct hierarchical {};
constexpr const char* hierarchical_name = "hierarchical";

template <class Comm, class A, class Call>
void answer(Comm& comm, const A& how, const Call& call) {
  if constexpr (std::is_same_v<A, hierarchical>) {
    comm.native(call);
  } else if constexpr (Answers<A, Comm, Call>) {
    how(comm, call);
  } else {
    throw usage_error("the algorithm has no such collective over messages");
  }
}

/// The work of one rank: in place if a call allows it, to avoid needless copies.
template <class Comm, class A>
void collective_of(Comm& comm, const scaling_case& c, const A& how, const reduction& sums, std::byte* in,
                   std::byte* out) {
  const std::size_t count = count_of(c.kind, c.bytes, c.ranks, dtype::float32);
  const collective_facts& f = facts(c.kind);
  const std::byte* from = f.in_blocks ? in : out;
  if (f.out_blocks && !f.in_blocks) from = out + static_cast<std::size_t>(comm.rank()) * count * sizeof(float);
  with_call(call{.kind = c.kind, .type = dtype::float32, .count = count, .in = from, .out = out}, c.ranks, sums,
            [&](const auto& made) { answer(comm, how, made); });
}

nlohmann::ordered_json measured(const scaling_case& c, const network& net) {
  const common_memory memory(2 * c.bytes);
  nlohmann::ordered_json line{
      {"collective", name(c.kind)}, {"algorithm", c.algorithm}, {"ranks", c.ranks}, {"bytes", c.bytes}};
  const auto start = std::chrono::steady_clock::now();
  double begin = 0;
  const auto rank = [&](SimulatedTransport& comm) {
    std::byte *const in = memory.data(), *const out = in + c.bytes;
    const reduction sums = comm.charged(make_reduction<float>(sum, c.ranks));
    if (c.algorithm != hierarchical_name) {
      comm.payload(false);
      return std::visit([&](const auto& how) { collective_of(comm, c, how, sums, in, out); }, c.how);
    }
    // Its groups are made by messages whose bytes matter; then all ranks begin at one time.
    Hierarchical<SimulatedTransport, SimulatedTransport> two(comm.split(0, comm.rank()),
                                                             comm.split(comm.host(), comm.rank()));
    begin = 1;
    comm.spend(begin - comm.now());
    comm.payload(false);
    collective_of(two, c, hierarchical{}, sums, in, out);
  };
  try {
    const simulation s = simulate(c.ranks, net, rank);
    line["seconds"] = s.seconds - begin;
    line["messages"] = {{"inside", s.inside.messages}, {"between", s.between.messages}};
    line["message_bytes"] = {{"inside", s.inside.bytes}, {"between", s.between.bytes}};
  } catch (const std::exception& e) {
    line["error"] = e.what();
  }
  line["wall_seconds"] = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return line;
}

constexpr const char* engine_name = "engine";

nlohmann::ordered_json measured(const engine_case& c, const network& net) {
  nlohmann::ordered_json line{
      {"collective", engine_name}, {"tensors", c.tensors}, {"ranks", c.ranks}, {"bytes", c.bytes}};
  const auto start = std::chrono::steady_clock::now();
  const auto add = [&](const char* part, const engine_cost& cost) {
    line[part] = {{"seconds", cost.seconds},
                  {"messages", {{"inside", cost.inside.messages}, {"between", cost.between.messages}}},
                  {"message_bytes", {{"inside", cost.inside.bytes}, {"between", cost.between.bytes}}}};
  };
  try {
    const engine_costs costs = simulate_engine(c, net);
    line["announcement_bytes"] = costs.announcement_bytes;
    add("start", costs.start);
    add("first", costs.first);
    add("later", costs.later);
    add("data", costs.data);
  } catch (const std::exception& e) {
    line["error"] = e.what();
  }
  line["wall_seconds"] = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return line;
}

collective collective_named(const std::string& text) {
  std::string all;
  for (const collective kind : kinds()) {
    if (name(kind) == text) return kind;
    all += (all.empty() ? "" : ", ") + std::string(name(kind));
  }
  throw usage_error("there is no collective \"" + text + "\"; allowed: " + all + ", " + engine_name);
}

int number_of(const std::string& count, const std::string& what, const std::string& text, int least, int most) {
  const auto n = parse_size(count);
  if (n && *n >= static_cast<std::size_t>(least) && *n <= static_cast<std::size_t>(most)) return static_cast<int>(*n);
  throw usage_error(count + " " + what + " in \"" + text + "\"; allowed: " + std::to_string(least) + " to " +
                    std::to_string(most));
}

std::size_t bytes_of(const std::string& bytes, const std::string& text, std::size_t most) {
  if (const auto n = parse_size(bytes); n && *n % sizeof(float) == 0 && *n <= most) return *n;
  throw usage_error(bytes + " bytes in \"" + text + "\"; allowed: multiples of 4 up to " + size_text(most) +
                    ", such as 64K");
}

/// A line of the input.
std::variant<scaling_case, engine_case> parse_case(const std::string& text) {
  std::istringstream words(text);
  std::string kind, how, ranks, bytes, more;
  if (!(words >> kind >> how >> ranks >> bytes) || words >> more) {
    throw usage_error("\"" + text + "\" is not COLLECTIVE ALGORITHM RANKS BYTES, nor engine TENSORS RANKS BYTES");
  }
  if (kind == engine_name) {
    return engine_case{.ranks = number_of(ranks, "ranks", text, 2, 4096),
                       .tensors = number_of(how, "tensors", text, 1, 1000),
                       .bytes = bytes_of(bytes, text, std::size_t{1} << 20)};
  }
  scaling_case c{.kind = collective_named(kind), .algorithm = how};
  try {
    if (how != hierarchical_name) c.how = parse_algorithm(how);
  } catch (const std::runtime_error& e) {
    throw usage_error(e.what());
  }
  c.ranks = number_of(ranks, "ranks", text, 2, 65536);
  c.bytes = bytes_of(bytes, text, std::size_t{1} << 40);
  return c;
}

template <class A>
bool has(collective kind) {
  bool yes = false;
  with_call(call{.kind = kind}, 1, reduction(),
            [&]<class Call>(const Call&) { yes = Answers<A, SimulatedTransport, Call>; });
  return yes;
}

/// For each collective the algorithms that have a name.
template <class... A>
nlohmann::ordered_json listing(const std::variant<A...>* /*all*/) {
  nlohmann::ordered_json result;
  for (const collective kind : kinds()) {
    auto& names = result[std::string(name(kind))] = nlohmann::ordered_json::array();
    const auto add = [&](const auto& a) {
      if constexpr (requires { name(a); }) {
        const std::string whole = name(a);
        if (has<std::remove_cvref_t<decltype(a)>>(kind)) names.push_back(whole.substr(0, whole.find('(')));
      }
    };
    (add(A{}), ...);
    names.push_back(hierarchical_name);
  }
  return result;
}

/// "LATENCY,BANDWIDTH,OVERHEAD"
network::level parse_level(const std::string& flag, const std::string& text) {
  network::level l;
  std::istringstream in(text);
  char a = 0, b = 0;
  if (in >> l.latency >> a >> l.bandwidth >> b >> l.overhead && a == ',' && b == ',' && in.peek() == EOF) return l;
  throw usage_error(flag + " " + text +
                    " is not LATENCY,BANDWIDTH,OVERHEAD in s, bytes/s and s, such as 2e-6,1e10,5e-7");
}

int run(int argc, char** argv) {
  CLI::App app("Reads lines COLLECTIVE ALGORITHM RANKS BYTES from standard input, simulates each, and prints a line of "
               "JSON for each. ALGORITHM is as for hvd-bench: ring, or ring:chunk_bytes=64K. A line engine TENSORS "
               "RANKS BYTES is what hvd::Engine takes to agree on so many allreduces of so many bytes.");
  network net;
  std::string inside, between;
  bool list = false;
  app.add_flag("--list", list, "print which algorithms each collective has, and end");
  app.add_option("--ranks-per-host", net.ranks_per_host, "ranks on each host (default 1)");
  app.add_option("--inside", inside, "LATENCY,BANDWIDTH,OVERHEAD of messages inside of a host, in s, bytes/s, s");
  app.add_option("--between", between, "the same between hosts");
  app.add_option("--uplink", net.uplink,
                 "bytes/s in each direction that the ranks of a host share (default 0: no limit)");
  app.add_option("--reduction-rate", net.reduction_rate, "bytes/s of result of a kernel");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    return app.exit(CLI::CallForHelp());
  } catch (const CLI::ParseError& e) {
    throw usage_error(std::string(e.what()) + "; --help lists the flags");
  }
  if (list) {
    std::cout << listing(static_cast<const any_algorithm*>(nullptr)) << '\n';
    return 0;
  }
  if (!inside.empty()) net.inside = parse_level("--inside", inside);
  if (!between.empty()) net.between = parse_level("--between", between);
  try {
    detail::check(net);
  } catch (const error& e) {
    throw usage_error(e.what());
  }
  bool failed = false;
  std::string text;
  while (std::getline(std::cin, text)) {
    const auto c = parse_case(text);
    const auto* const by_engine = std::get_if<engine_case>(&c);
    const nlohmann::ordered_json line =
        by_engine != nullptr ? measured(*by_engine, net) : measured(std::get<scaling_case>(c), net);
    failed = failed || line.contains("error");
    std::cout << line << std::endl;  // flushed, because the reader shows progress
  }
  return failed ? 1 : 0;
}

}  // namespace
}  // namespace hvd::bench

int main(int argc, char** argv) {
  try {
    return hvd::bench::run(argc, argv);
  } catch (const hvd::bench::usage_error& e) {
    std::cerr << "hvd-scaling: " << e.what() << ".\n";
    return 2;
  } catch (const std::exception& e) {
    std::cerr << "hvd-scaling: " << e.what() << '\n';
    return 1;
  }
}
