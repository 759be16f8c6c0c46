// bench/coordinator/run.cpp: the order of measurements, so that all libraries see the same sizes in the same minutes.
#include <bench/coordinator/run.hpp>

#include <bench/cases/inputs.hpp>
#include <bench/coordinator/libraries.hpp>
#include <bench/coordinator/line_cost.hpp>
#include <bench/coordinator/signals.hpp>
#include <bench/report/report.hpp>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <utility>

namespace hvd::bench {
namespace {

constexpr unsigned fewest = 20, probes = 3;
constexpr unsigned most_tries = 3;  // of a row with --steady

/// A failure in any try of a row counts.
void keep_failures(row& r, const row& earlier) {
  for (std::size_t l = 0; l != r.libraries.size(); ++l) {
    measured& now = r.libraries[l];
    const measured& then = earlier.libraries[l];
    if (now.error.empty()) now.error = then.error;
    for (const auto part : {&measured::out_of_place, &measured::in_place}) {
      if ((now.*part) && (then.*part) && (then.*part)->wrong) {
        (now.*part)->wrong = (now.*part)->wrong.value_or(0) + *(then.*part)->wrong;
      }
    }
  }
}

class runner {
 public:
  runner(const options& o, const std::string& cpu_list, std::vector<std::unique_ptr<Library>>& libraries)
      : o_(o), cpu_list_(cpu_list), libraries_(libraries) {
    if (o.steady) line_us_ = measure_line_us(o.ranks, cpu_list);
  }

  /// A row; with --steady the first try during which the cost of cache lines did not change, or the last one.
  row measure(std::size_t size, dtype type, redop op, int root) {
    row r = measure_once(size, type, op, root);
    for (unsigned tries = 2; r.line.changed() && tries <= most_tries; ++tries) {
      const row earlier = std::exchange(r, measure_once(size, type, op, root));
      keep_failures(r, earlier);
      r.line.tries = tries;
    }
    return r;
  }

 private:
  struct half {
    std::vector<double> samples;
    std::optional<std::uint64_t> wrong;
    unsigned iterations = 0, warmup = 0;  ///< of each round
  };
  struct state {
    half of[2];
    std::string error;
    bool failed = false;
  };

  row measure_once(std::size_t size, dtype type, redop op, int root) {
    row r;
    r.type = type;
    r.op = op;
    r.root = root;
    r.count = o_.kind == collective::barrier ? 0
              : o_.kind == collective::fused ? parameters_of(o_.parameters)
                                             : count_of(o_.kind, size, o_.ranks, type);
    r.size = size_of_message(o_.kind, r.count, o_.ranks, type);
    job j = job_of(o_);
    j.type = type;
    j.op = op;
    j.root = root;
    j.count = r.count;
    j.rotating_bytes = rotating_bytes();

    std::vector<state> all(libraries_.size());
    r.line.add(line_us_);
    for (unsigned round = 0; round != o_.rounds; ++round) {
      for (std::size_t l = 0; l != all.size(); ++l) {
        for (const bool in_place : {false, true}) turn(*libraries_[l], all[l], j, in_place, round);
      }
      if (o_.steady) r.line.add(line_us_ = measure_line_us(o_.ranks, cpu_list_));
    }
    for (std::size_t l = 0; l != all.size(); ++l) {
      for (const bool in_place : {false, true}) check(*libraries_[l], all[l], j, in_place);
      measured m;
      m.error = all[l].error;
      if (!all[l].of[0].samples.empty()) m.out_of_place = finish(all[l].of[0]);
      if (!all[l].of[1].samples.empty()) m.in_place = finish(all[l].of[1]);
      r.libraries.push_back(std::move(m));
    }
    return r;
  }

  [[nodiscard]] bool wanted(const state& s, bool in_place) const {
    return !s.failed && (in_place ? o_.in_place && works_in_place(o_.kind) : o_.out_of_place);
  }

  job_result submit(Library& library, state& s, const job& j) {
    if (!library.missing().empty() && library.description().empty()) {  // never ran; see the head of the table
      s.failed = true;
      s.error = library.missing();
      return {};
    }
    job_result result = library.run(j);
    if (result.state == outcome::done) return result;
    if (s.error.empty() || result.state == outcome::failed) s.error = result.problem;
    s.failed = s.failed || result.state == outcome::failed;
    return result;
  }

  void turn(Library& library, state& s, job j, bool in_place, unsigned round) {
    half& h = s.of[in_place ? 1 : 0];
    if (!wanted(s, in_place)) return;
    j.in_place = in_place;
    if (round == 0) {
      plan(library, s, h, j);
    }
    if (h.iterations == 0 || s.failed) return;
    j.warmup = h.warmup;
    j.iterations = h.iterations;
    const job_result result = submit(library, s, j);
    h.samples.insert(h.samples.end(), result.samples.begin(), result.samples.end());
  }

  /// How many calls fit into the time for a cell.
  void plan(Library& library, state& s, half& h, job j) {
    if (o_.iterations) {
      h.iterations = std::max(1U, *o_.iterations / o_.rounds);
      h.warmup = *o_.warmup;
      // Whether the library can is still unknown.
      j.check = true;
      j.iterations = 0;
      if (submit(library, s, j).state != outcome::done) h.iterations = 0;
      return;
    }
    j.warmup = 2;
    j.iterations = probes;
    const job_result probe = submit(library, s, j);
    if (probe.state != outcome::done) return;
    const double each = std::max(probe.seconds / probes, 1e-8);
    const double affordable = std::max(std::min(o_.seconds * 16 / each, double{fewest}), 5.0);
    const double total = std::clamp(o_.seconds / each, affordable, static_cast<double>(most_iterations(o_)));
    h.iterations = std::max(1U, static_cast<unsigned>(std::ceil(total / o_.rounds)));
    h.warmup = o_.warmup.value_or(std::clamp(h.iterations / 4, 1U, 20U));
  }

  void check(Library& library, state& s, job j, bool in_place) {
    half& h = s.of[in_place ? 1 : 0];
    if (o_.checks == 0 || h.samples.empty() || !wanted(s, in_place)) return;
    if (reduces(j.kind) && !verifiable(j.type, j.op, o_.ranks)) return;
    j.in_place = in_place;
    j.check = true;
    j.iterations = o_.checks;
    const job_result result = submit(library, s, j);
    if (result.state == outcome::done) h.wrong = result.wrong;
  }

  static timing finish(half& h) {
    timing t = summarise(std::move(h.samples));
    t.wrong = h.wrong;
    t.warmup = h.warmup;
    return t;
  }

  const options& o_;
  const std::string cpu_list_;
  std::optional<double> line_us_;  ///< after the row before
  std::vector<std::unique_ptr<Library>>& libraries_;
};

/// All rows of the table. Whether hvd gave every number.
bool measure_all(const options& o, const machine& m, std::vector<std::unique_ptr<Library>>& libraries, Report& report) {
  runner each(o, cpu_list(o, m), libraries);
  bool good = true;
  for (unsigned cycle = 0; cycle != o.cycles; ++cycle) {
    for (const dtype type : o.types) {
      for (const redop op : o.ops) {
        if (reduces(o.kind) && !(has_op(o.kind, op) && defined(type, op))) continue;
        for (const int root : o.roots) {
          for (const std::size_t size : sizes_of(o)) {
            const row r = each.measure(size, type, op, root);
            report.add(r);
            good = good && r.libraries[0].error.empty();
          }
        }
      }
    }
  }
  return good;
}

}  // namespace

int run(const options& o, const std::optional<launched>& inside) {
  const machine m = machine::of_this_process();
  Report report(o, m);
  check_memory(o, 1 + o.peers.size() + (o.limit ? 1 : 0));
  if (inside) check_launched(*inside, o);
  if (inside && inside->rank > 0) {
    return serve_launched(*inside, {o.transport, o.algorithm, inside->key, o.ranks_per_gpu}, cpu_list(o, m));
  }
  std::vector<std::unique_ptr<Library>> libraries = start_libraries(o, m, inside);
  report.head(lines_of(libraries), libraries[0]->ranks());

  bool failed = false;
  int signal = 0;
  try {
    failed = !measure_all(o, m, libraries, report);
  } catch (const interrupted& e) {
    signal = e.signal;
  }
  const std::vector<library_line> lines = lines_of(libraries);
  for (const auto& l : libraries) l->stop();
  report.finish(lines, signal == 0 ? "" : signal_name(signal));
  if (signal != 0) {
    const bool kept = !o.json.empty() && report.rows() != 0;
    throw interrupted(signal, kept ? "; " + o.json + " has what was measured until then" : "");
  }
  failed = !say_missing(lines) || failed;
  if (o.min_bandwidth > 0 && report.average_bandwidth() < 0.9 * o.min_bandwidth) {
    std::fprintf(stderr,
                 "hvd-bench: the average bus bandwidth, %g GB/s, is less than 90 %% of NCCL_TESTS_MIN_BW, %g GB/s\n",
                 report.average_bandwidth(), o.min_bandwidth);
    return 1;
  }
  return failed || report.wrong() != 0 ? 1 : 0;
}

void list() {
  const auto line = [](const char* what, const auto& names) {
    std::printf("%-12s", what);
    for (const auto& n : names) std::printf(" %s", std::string(n).c_str());
    std::printf("\n");
  };
  line("collectives", collective_names);
  std::vector<std::string> types;
  for (int t = 0; t != static_cast<int>(dtype::user); ++t) types.emplace_back(type_name(static_cast<dtype>(t)));
  line("types", types);
  line("reductions", redop_names);
  line("transports", transport_names);
  line("algorithms", algorithm_names);
  for (const std::string_view name : algorithm_names) {
    const std::string tunables = tunables_of(name);
    if (!tunables.empty()) std::printf("tunables     %s: %s\n", std::string(name).c_str(), tunables.c_str());
  }
  line("models", model_names);
  std::printf("peer         %s: NCCL without hvd, next to --transport nccl\n", std::string(bare_nccl).c_str());
  for (const std::string& name : known_peers()) {
    const launch l = launch_of({name, ""}, 2, 2);
    std::printf("peer         %s: %s\n", name.c_str(), l.missing.empty() ? "found" : l.missing.c_str());
  }
}

}  // namespace hvd::bench
