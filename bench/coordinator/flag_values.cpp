// bench/coordinator/flag_values.cpp: sizes, times and names as people and nccl-tests write them.
#include <bench/coordinator/flag_values.hpp>

#include <bench/sizes.hpp>

#include <algorithm>
#include <iterator>
#include <utility>

namespace hvd::bench {

std::size_t size_option(const std::string& flag, const std::string& text) {
  if (const auto size = parse_size(text)) return *size;
  throw usage_error(flag + " " + text +
                    " is not a size; write a whole number of bytes, or one with K, M, G or T (powers of 1024)");
}

double seconds_option(const std::string& flag, const std::string& text) {
  constexpr int day = 86'400;
  double value = 0;
  if (is_number(text, value) && value > 0 && value <= day) return value;
  throw usage_error(flag + " " + text + " is not a time; allowed: more than 0 and at most " + std::to_string(day) +
                    " seconds");
}

collective collective_option(std::string text) {
  if (text.ends_with("_perf")) text.resize(text.size() - 5);
  std::replace(text.begin(), text.end(), '-', '_');
  constexpr std::pair<std::string_view, collective> others[] = {{"all_reduce", collective::allreduce},
                                                                {"all_gather", collective::allgather},
                                                                {"reducescatter", collective::reduce_scatter},
                                                                {"all_to_all", collective::alltoall},
                                                                {"bcast", collective::broadcast},
                                                                {"sendrecv", collective::send_recv}};
  for (const auto& [spelling, kind] : others) {
    if (text == spelling) return kind;
  }
  if (const auto kind = find<collective>(collective_names, text)) return *kind;
  throw usage_error("there is no collective \"" + text + "\"; allowed: " + join(collective_names));
}

std::vector<dtype> type_option(const std::string& text) {
  constexpr std::pair<std::string_view, dtype> others[] = {
      {"half", dtype::float16},  {"fp16", dtype::float16},   {"float", dtype::float32},
      {"fp32", dtype::float32},  {"double", dtype::float64}, {"fp64", dtype::float64},
      {"bf16", dtype::bfloat16}, {"char", dtype::int8},      {"boolean", dtype::boolean}};
  std::vector<dtype> all;
  std::string names;
  for (int t = 0; t != static_cast<int>(dtype::user); ++t) {
    const auto type = static_cast<dtype>(t);
    if (hvd::name(type) == text || type_name(type) == text) return {type};
    if (type != dtype::boolean && type != dtype::complex64 && type != dtype::complex128) all.push_back(type);
    names += std::string(type_name(type)) + ", ";
  }
  for (const auto& [spelling, type] : others) {
    if (text == spelling) return {type};
  }
  if (text == "all") return all;
  throw usage_error("-d " + text + " is not a type; allowed: " + names + "all");
}

std::vector<redop> op_option(const std::string& text) {
  if (text == "all") return {redop::sum, redop::prod, redop::min, redop::max, redop::avg};
  if (text == "product") return {redop::prod};
  if (text == "average") return {redop::avg};
  if (const auto op = find<redop>(redop_names, text)) return {*op};
  throw usage_error("-o " + text + " is not a reduction; allowed: " + join(redop_names) + ", all");
}

peer_option peer_of(const std::string& text) {
  const std::size_t equals = text.find('=');
  peer_option peer{text.substr(0, equals), equals == std::string::npos ? "" : text.substr(equals + 1)};
  if (peer.name.empty() || (equals != std::string::npos && peer.command.empty())) {
    throw usage_error("--peer " + text + " has no " + (peer.name.empty() ? "name" : "command") +
                      "; write --peer NAME or --peer NAME=COMMAND");
  }
  return peer;
}

}  // namespace hvd::bench
