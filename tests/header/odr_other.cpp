#include <hvd/hvd.hpp>

const void* sum_seen_by_other();

const void* sum_seen_by_other() { return &hvd::sum; }
