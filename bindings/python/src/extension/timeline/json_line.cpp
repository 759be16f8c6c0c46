// json_line.cpp: parses any JSON object as an event: keys in any order, escapes, numbers in any form.

#include "line.hpp"

#include <charconv>
#include <cmath>
#include <limits>

namespace hvd_timeline {
namespace {

class scanner {
 public:
  scanner(std::string_view line, line_event& to, decoded_texts& texts)
      : p_(line.data()), end_(p_ + line.size()), e_(to), texts_(texts) {}

  bool event() {
    bool has_phase = false;
    const bool good = object([&](std::string_view key) {
      if (key == "ph") {
        std::string_view phase;
        if (!text(phase) || phase.size() != 1 || static_cast<unsigned char>(phase[0]) >= 0x80) return false;
        e_.phase = phase[0];
        has_phase = true;
        return true;
      }
      if (key == "name") return text(e_.name);
      if (key == "pid") return text_of(e_.process_text, [&] { return number_below_2_32(e_.process); });
      if (key == "tid") return number_below_2_32(e_.rank);
      if (key == "ts") return e_.has_time = text_of(e_.time_text, [&] { return time(e_.time); });
      if (key == "dur") return time(e_.duration);
      if (key == "args" && peek() == '{') {
        return object([&](std::string_view argument) { return this->argument(argument); });
      }
      return anything(0);
    });
    return good && has_phase && (blanks(), p_ == end_) && plausible();
  }

 private:
  static constexpr int deepest = 32;

  void blanks() {
    while (p_ != end_ && (*p_ == ' ' || *p_ == '\t' || *p_ == '\r')) ++p_;
  }
  char peek() {
    blanks();
    return p_ == end_ ? '\0' : *p_;
  }
  bool take(char c) {
    if (peek() != c) return false;
    ++p_;
    return true;
  }

  // Stores the position of read().
  template <class Read>
  bool text_of(std::string_view& to, const Read& read) {
    blanks();
    const char* const begin = p_;
    const bool good = read();
    to = {begin, static_cast<std::size_t>(p_ - begin)};
    return good;
  }

  // Calls member(key) at the value of each member, which it must read.
  template <class Member>
  bool object(const Member& member) {
    if (!take('{')) return false;
    if (take('}')) return true;
    std::string decoded;
    do {
      std::string_view key;
      if (!text(key, decoded) || !take(':') || !member(key)) return false;
    } while (take(','));
    return take('}');
  }

  // The number of ranks determines the memory used.
  bool plausible() {
    if (e_.phase != 'M' || e_.process != 0) return true;
    if (e_.name == "hvd_rank") return e_.rank < most_ranks && e_.size >= 0 && e_.size <= most_ranks;
    if (e_.name != "hvd_process_set") return true;
    if (e_.rank >= most_ranks || e_.set <= 0 || e_.set > INT32_MAX || ranks_text_.empty()) return false;
    p_ = ranks_text_.data();
    if (!take('[')) return false;
    do {
      std::uint32_t rank = 0;
      if (!number_below_2_32(rank) || rank >= most_ranks) return false;
      e_.ranks.push_back(rank);
    } while (take(','));
    return take(']');
  }

  bool argument(std::string_view key) {
    if (peek() == '"') {
      std::string_view* const to = key == "dtype"                                      ? &e_.dtype
                                   : key == "shape"                                    ? &e_.shape
                                   : key == "name" || key == "tensor" || key == "text" ? &e_.label
                                   : key == "host"                                     ? &e_.host
                                   : key == "job"                                      ? &e_.job
                                                                                       : nullptr;
      return to != nullptr ? text(*to) : anything(0);
    }
    if (key == "unfinished") {
      e_.unfinished = peek() == 't';
      return anything(0);
    }
    if (key == "ranks") return text_of(ranks_text_, [&] { return anything(0); });
    std::int64_t* const to = key == "size"      ? &e_.size
                             : key == "process" ? &e_.pid
                             : key == "samples" ? &e_.samples
                             : key == "events"  ? &e_.events
                             : key == "set"     ? &e_.set
                                                : nullptr;
    double value = 0;
    if (to == nullptr || peek() == '{' || peek() == '[' || peek() == 't' || peek() == 'f' || peek() == 'n') {
      return anything(0);
    }
    if (!number(value)) return false;
    *to = std::abs(value) < 9e15 ? static_cast<std::int64_t>(value) : 0;
    return true;
  }

  bool digits() {
    const char* const begin = p_;
    while (p_ != end_ && *p_ >= '0' && *p_ <= '9') ++p_;
    return p_ != begin;
  }
  bool number(double& to) {
    blanks();
    const char* const begin = p_;
    if (p_ != end_ && *p_ == '-') ++p_;
    const char* const whole = p_;
    if (!digits() || (*whole == '0' && p_ != whole + 1)) return false;
    if (p_ != end_ && *p_ == '.' && (++p_, !digits())) return false;
    if (p_ != end_ && (*p_ == 'e' || *p_ == 'E')) {
      ++p_;
      if (p_ != end_ && (*p_ == '-' || *p_ == '+')) ++p_;
      if (!digits()) return false;
    }
    if (std::from_chars(begin, p_, to).ec == std::errc::result_out_of_range)
      to = std::numeric_limits<double>::infinity();
    return true;
  }
  bool number_below_2_32(std::uint32_t& to) {
    double value = 0;
    if (!number(value) || value < 0 || value > std::numeric_limits<std::uint32_t>::max()) return false;
    to = static_cast<std::uint32_t>(value);
    return true;
  }
  // Microseconds, converted to nanoseconds; the same range as read_time.
  bool time(std::int64_t& to) {
    double value = 0;
    if (!number(value) || !(std::abs(value) < 1e14)) return false;
    to = std::llround(value * 1000);
    return true;
  }

  bool text(std::string_view& to) {
    return texts_.used != texts_.texts.size() && text(to, texts_.texts[texts_.used++]);
  }
  // `to` lies in the line, or in `decoded` if the text has escapes.
  bool text(std::string_view& to, std::string& decoded) {
    if (!take('"')) return false;
    const char* const begin = p_;
    while (p_ != end_ && *p_ != '"' && *p_ != '\\') {
      if (static_cast<unsigned char>(*p_++) < 0x20) return false;
    }
    if (p_ == end_) return false;
    if (*p_ == '"') {
      to = {begin, static_cast<std::size_t>(p_++ - begin)};
      return true;
    }
    decoded.assign(begin, p_);
    while (p_ != end_ && *p_ != '"') {
      if (*p_ != '\\') {
        if (static_cast<unsigned char>(*p_) < 0x20) return false;
        decoded += *p_++;
      } else if (++p_; p_ == end_ || !escape(decoded)) {
        return false;
      }
    }
    if (p_ == end_) return false;
    ++p_;
    to = decoded;
    return true;
  }

  bool escape(std::string& to) {
    switch (const char c = *p_++) {
      case '"':
      case '\\':
      case '/': to += c; return true;
      case 'b': to += '\b'; return true;
      case 'f': to += '\f'; return true;
      case 'n': to += '\n'; return true;
      case 'r': to += '\r'; return true;
      case 't': to += '\t'; return true;
      case 'u': break;
      default: return false;
    }
    std::uint32_t code = 0;
    if (!hex(code)) return false;
    if (code >= 0xd800 && code < 0xdc00 && end_ - p_ >= 6 && p_[0] == '\\' && p_[1] == 'u') {
      const char* const before = p_;
      std::uint32_t low = 0;
      p_ += 2;
      if (!hex(low)) return false;
      if (low >= 0xdc00 && low < 0xe000) {
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
      } else {
        p_ = before;
      }
    }
    if (code >= 0xd800 && code < 0xe000) code = 0xfffd;  // half of a surrogate pair is not a character
    append(to, code);
    return true;
  }
  bool hex(std::uint32_t& to) {
    if (end_ - p_ < 4) return false;
    const auto [next, wrong] = std::from_chars(p_, p_ + 4, to, 16);
    if (wrong != std::errc() || next != p_ + 4) return false;
    p_ = next;
    return true;
  }
  static void append(std::string& to, std::uint32_t code) {
    const auto tail = [&](unsigned shift) { to += static_cast<char>(0x80 | ((code >> shift) & 0x3f)); };
    if (code < 0x80) {
      to += static_cast<char>(code);
    } else if (code < 0x800) {
      to += static_cast<char>(0xc0 | code >> 6);
      tail(0);
    } else if (code < 0x10000) {
      to += static_cast<char>(0xe0 | code >> 12);
      tail(6), tail(0);
    } else {
      to += static_cast<char>(0xf0 | code >> 18);
      tail(12), tail(6), tail(0);
    }
  }

  bool word(std::string_view expected) {
    if (static_cast<std::size_t>(end_ - p_) < expected.size() || std::string_view(p_, expected.size()) != expected) {
      return false;
    }
    p_ += expected.size();
    return true;
  }

  // Skips a value.
  bool anything(int depth) {
    if (depth == deepest) return false;
    switch (peek()) {
      case '"': {
        std::string_view ignored;
        std::string decoded;
        return text(ignored, decoded);
      }
      case '{': return nested(depth);
      case '[': {
        ++p_;
        if (take(']')) return true;
        do {
          if (!anything(depth + 1)) return false;
        } while (take(','));
        return take(']');
      }
      case 't': return word("true");
      case 'f': return word("false");
      case 'n': return word("null");
      default: {
        double ignored = 0;
        return number(ignored);
      }
    }
  }
  bool nested(int depth) {
    return object([&](std::string_view) { return anything(depth + 1); });
  }

  const char* p_;
  const char* const end_;
  line_event& e_;
  decoded_texts& texts_;
  std::string_view ranks_text_;
};

}  // namespace

bool read_json_line(std::string_view line, line_event& to, decoded_texts& texts) {
  to = {};
  texts.used = 0;
  return scanner(line, to, texts).event();
}

}  // namespace hvd_timeline
