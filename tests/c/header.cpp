// tests/c/header.cpp: hvd/c/hvd.h twice, in any C++.
#include <hvd/c/hvd.h>

#include <hvd/c/hvd.h>

int reports() {
  hvd_submit how = {0, 0, -1};
  hvd_tensor tensor = {NULL, NULL, 0, HVD_FLOAT32, HVD_FLOAT32};
  return how.wire + tensor.wire + hvd_last_error_rank();
}
