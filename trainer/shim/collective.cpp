// libtorch's c10d behind plain functions: a key-value store over TCP, a group of processes over gloo, and the work that an
// operation of the group is.
//
// The conventions are those of shim.cpp. A handle is a heap-allocated `c10::intrusive_ptr`, given back with the `_free` of its
// kind. gloo's own headers are not part of libtorch: `gloo_stubs/` declares what ProcessGroupGloo.hpp mentions of them, and
// all of the code is inside of libtorch_cpu. The declarations on the other side are in src/native/c10d.rs.

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "caught.h"

using dressage::caught;
using Milliseconds = std::chrono::milliseconds;
using StoreHandle = c10::intrusive_ptr<c10d::Store>;
using GroupHandle = c10::intrusive_ptr<c10d::Backend>;
using WorkHandle = c10::intrusive_ptr<c10d::Work>;

namespace {

std::vector<uint8_t> bytes_of(const char *bytes, size_t length) {
  return std::vector<uint8_t>(reinterpret_cast<const uint8_t *>(bytes), reinterpret_cast<const uint8_t *>(bytes) + length);
}

} // namespace

extern "C" {

// Connects to the store at host:port; the one rank with `is_server` also runs it. Waits until `n_workers` have come, unless
// that is negative.
char *dressage_store_open(const char *host, uint16_t port, bool is_server, int64_t n_workers, int64_t timeout_ms,
                          StoreHandle **store, uint16_t *port_found) {
  return caught([&] {
    c10d::TCPStoreOptions options;
    options.port = port;
    options.isServer = is_server;
    if (n_workers >= 0) options.numWorkers = static_cast<size_t>(n_workers);
    options.waitWorkers = n_workers >= 0;
    options.timeout = Milliseconds(timeout_ms);
    auto opened = c10::make_intrusive<c10d::TCPStore>(host, options);
    *port_found = opened->getPort();
    *store = new StoreHandle(opened);
  });
}

// The same store through a connection of its own, so that a thread that waits does not hold up another.
char *dressage_store_clone(const StoreHandle *store, StoreHandle **clone) {
  return caught([&] { *clone = new StoreHandle((*store)->clone()); });
}

// The keys of a store that begin with `prefix/`.
char *dressage_store_prefixed(const StoreHandle *store, const char *prefix, StoreHandle **prefixed) {
  return caught([&] { *prefixed = new StoreHandle(c10::make_intrusive<c10d::PrefixStore>(prefix, *store)); });
}

void dressage_store_free(StoreHandle *store) { delete store; }

char *dressage_store_set(const StoreHandle *store, const char *key, const char *bytes, size_t length) {
  return caught([&] { (*store)->set(key, bytes_of(bytes, length)); });
}

// Waits for a key, and gives its value in memory that the caller gives back with `dressage_message_free`.
char *dressage_store_get(const StoreHandle *store, const char *key, int64_t timeout_ms, char **bytes, size_t *length) {
  return caught([&] {
    (*store)->wait({key}, Milliseconds(timeout_ms));
    const auto value = (*store)->get(key);
    *bytes = static_cast<char *>(std::malloc(value.size() + 1));
    if (*bytes == nullptr) std::abort();
    if (!value.empty()) std::memcpy(*bytes, value.data(), value.size());
    *length = value.size();
  });
}

char *dressage_store_has(const StoreHandle *store, const char *key, bool *has) {
  return caught([&] { *has = (*store)->check({key}); });
}

// Joins a group over gloo, through the network interfaces that are named, or through the one of this host's name.
char *dressage_gloo_join(const StoreHandle *store, int rank, int world_size, int64_t timeout_ms,
                         const char *const *interfaces, size_t n_interfaces, GroupHandle **group) {
  return caught([&] {
    auto options = c10d::ProcessGroupGloo::Options::create(Milliseconds(timeout_ms));
    for (size_t i = 0; i < n_interfaces; ++i)
      options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForInterface(interfaces[i]));
    if (n_interfaces == 0) options->devices.push_back(c10d::ProcessGroupGloo::createDefaultDevice());
    *group = new GroupHandle(c10::make_intrusive<c10d::ProcessGroupGloo>(*store, rank, world_size, options));
  });
}

void dressage_group_free(GroupHandle *group) { delete group; }

// 0 is the sum, 1 the maximum, in place.
char *dressage_all_reduce(const GroupHandle *group, const at::Tensor *tensor, int reduce, WorkHandle **work) {
  return caught([&] {
    c10d::AllreduceOptions options;
    options.reduceOp = reduce == 0 ? c10d::ReduceOp::SUM : c10d::ReduceOp::MAX;
    std::vector<at::Tensor> tensors{*tensor};
    *work = new WorkHandle((*group)->allreduce(tensors, options));
  });
}

// Rank r's part of the sum over ranks.
char *dressage_reduce_scatter(const GroupHandle *group, const at::Tensor *part, const at::Tensor *whole,
                              WorkHandle **work) {
  return caught([&] {
    at::Tensor output = *part, input = *whole;
    *work = new WorkHandle((*group)->_reduce_scatter_base(output, input));
  });
}

char *dressage_all_gather(const GroupHandle *group, const at::Tensor *whole, const at::Tensor *part, WorkHandle **work) {
  return caught([&] {
    at::Tensor output = *whole, input = *part;
    *work = new WorkHandle((*group)->_allgather_base(output, input));
  });
}

char *dressage_broadcast(const GroupHandle *group, const at::Tensor *tensor, int from, WorkHandle **work) {
  return caught([&] {
    c10d::BroadcastOptions options;
    options.rootRank = from;
    std::vector<at::Tensor> tensors{*tensor};
    *work = new WorkHandle((*group)->broadcast(tensors, options));
  });
}

char *dressage_barrier(const GroupHandle *group, WorkHandle **work) {
  return caught([&] { *work = new WorkHandle((*group)->barrier()); });
}

// Waits until an operation is over, at most so long.
char *dressage_work_wait(const WorkHandle *work, int64_t timeout_ms) {
  return caught([&] { (*work)->wait(Milliseconds(timeout_ms)); });
}

void dressage_work_free(WorkHandle *work) { delete work; }

} // extern "C"
