// hvd/hvd.hpp: all of hvd that needs no third-party header.
#pragma once

#include <hvd/algorithm/adasum.hpp>
#include <hvd/allgather.hpp>
#include <hvd/allreduce.hpp>
#include <hvd/alltoall.hpp>
#include <hvd/any_transport.hpp>
#include <hvd/barrier.hpp>
#include <hvd/broadcast.hpp>
#include <hvd/config.hpp>
#include <hvd/engine.hpp>
#include <hvd/fusion.hpp>
#include <hvd/gather.hpp>
#include <hvd/hierarchical.hpp>
#include <hvd/launch.hpp>
#include <hvd/queue.hpp>
#include <hvd/reduce.hpp>
#include <hvd/reduce_scatter.hpp>
#include <hvd/scan.hpp>
#include <hvd/scatter.hpp>
#include <hvd/send_recv.hpp>
#include <hvd/tensors.hpp>
#include <hvd/timeline.hpp>
#include <hvd/topology.hpp>
#include <hvd/transport/self.hpp>
#include <hvd/transport/shm.hpp>
#include <hvd/transport/thread.hpp>
