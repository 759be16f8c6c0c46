// tests/odr/part.hpp: what each of two shared objects shows, which were built from different versions of hvd.
#pragma once

struct part {
  const char* version;
  /// Sums 1 and 2 in an allreduce of two ranks; `threads` calls `inside` in rank 0, among the ranks' threads, and adds
  /// what it returns.
  int (*processes)();
  int (*threads)(int (*inside)());
  void (*fail)();
  /// Whether what `f` throws is this version's hvd::error.
  bool (*catches)(void (*f)());
};

extern "C" const part* first();
extern "C" const part* second();
