// What tch does not wrap of libtorch: plain functions, no state, no types of our own.
//
// A tensor is an `at::Tensor *`, as in tch. Every function catches everything and returns null, or the first line of
// the message in memory that the caller gives back with `dressage_message_free`. The declarations on the other side
// are in src/native/torch.rs: change both together.

#include <dlfcn.h>

#include "caught.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_fused_adamw.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/autograd.h>

using dressage::caught;
using dressage::first_line;

namespace {

std::vector<at::Tensor> list_of(at::Tensor *const *tensors, size_t count) {
  std::vector<at::Tensor> list;
  list.reserve(count);
  for (size_t i = 0; i < count; ++i) list.push_back(tensors[i] ? *tensors[i] : at::Tensor());
  return list;
}

at::Generator generator(int device_index) {
  if (device_index < 0) return at::detail::getDefaultCPUGenerator();
  return at::globalContext().defaultGenerator(at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(device_index)));
}

} // namespace

extern "C" {

// Loads the CUDA half of libtorch, which registers itself. Not linked, so that one binary runs with and without it; the
// search goes along the run path of the binary, as that of libtorch_cpu did.
char *dressage_load_cuda() {
  if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) != nullptr) return nullptr;
  const char *message = dlerror();
  return first_line(message ? message : "libtorch_cuda.so cannot be loaded");
}

void dressage_message_free(char *message) { std::free(message); }

// Backward from several outputs with a gradient for each; adds to `grad` of the leaves.
char *dressage_backward(at::Tensor *const *outputs, at::Tensor *const *gradients, size_t count) {
  return caught([&] { torch::autograd::backward(list_of(outputs, count), list_of(gradients, count)); });
}

// Puts a gradient on a leaf, or takes it away (null) with its memory: tch can only fill it with zeros.
char *dressage_set_gradient(const at::Tensor *leaf, const at::Tensor *gradient) {
  return caught([&] { leaf->mutable_grad() = gradient ? *gradient : at::Tensor(); });
}

// Gives a tensor's numbers back to the allocator; its shape, its gradient and the graphs that it is part of stay. Nobody
// may read it until they are allocated anew.
char *dressage_storage_release(const at::Tensor *tensor) {
  return caught([&] {
    auto *storage = tensor->storage().unsafeGetStorageImpl();
    TORCH_CHECK(tensor->storage_offset() == 0 && tensor->is_contiguous(), "only a whole tensor can be released");
    storage->set_data_ptr_noswap(at::DataPtr(nullptr, tensor->device()));
    storage->set_nbytes(0);
  });
}

// Allocates the numbers of a tensor anew, whatever they are then: also for the graphs that hold on to it.
char *dressage_storage_allocate(const at::Tensor *tensor) {
  return caught([&] {
    c10::NoGradGuard no_grad;
    const at::Tensor fresh = at::empty(tensor->sizes(), tensor->options().requires_grad(false));
    auto *from = fresh.storage().unsafeGetStorageImpl();
    auto *to = tensor->storage().unsafeGetStorageImpl();
    const size_t n_bytes = from->nbytes();
    to->set_data_ptr_noswap(from->set_data_ptr(at::DataPtr(nullptr, tensor->device())));
    to->set_nbytes(n_bytes);
    from->set_nbytes(0);
  });
}

// One AdamW step on plain tensors. `steps` are counted up first, as the kernel wants it.
char *dressage_fused_adamw(at::Tensor *const *parameters, at::Tensor *const *gradients, at::Tensor *const *first,
                           at::Tensor *const *second, at::Tensor *const *steps, size_t count, double learning_rate,
                           double beta1, double beta2, double weight_decay, double eps) {
  return caught([&] {
    c10::NoGradGuard no_grad;
    const auto counters = list_of(steps, count);
    at::_foreach_add_(counters, 1);
    at::_fused_adamw_(list_of(parameters, count), list_of(gradients, count), list_of(first, count),
                      list_of(second, count), {}, counters, learning_rate, beta1, beta2, weight_decay, eps,
                      /*amsgrad=*/false, /*maximize=*/false);
  });
}

// The 2-norm over all tensors, as one new f32 scalar on their device; nothing is copied to the host.
char *dressage_global_norm(at::Tensor *const *tensors, size_t count, at::Tensor **norm) {
  return caught([&] {
    c10::NoGradGuard no_grad;
    const auto norms = at::_foreach_norm(list_of(tensors, count), 2, at::kFloat);
    *norm = new at::Tensor(at::linalg_vector_norm(at::stack(norms)));
  });
}

// Multiplies every tensor in place with a scalar that may live on the device.
char *dressage_scale(at::Tensor *const *tensors, size_t count, const at::Tensor *factor) {
  return caught([&] {
    c10::NoGradGuard no_grad;
    at::_foreach_mul_(list_of(tensors, count), *factor);
  });
}

// The state of a random generator as a byte tensor: the CPU's for a negative index, else that of a CUDA device.
char *dressage_rng_state(int device_index, at::Tensor **state) {
  return caught([&] { *state = new at::Tensor(generator(device_index).get_state()); });
}

char *dressage_rng_set_state(int device_index, const at::Tensor *state) {
  return caught([&] { generator(device_index).set_state(*state); });
}

// Bytes that the accelerator's allocator has given out: now, and at most since the last reset.
char *dressage_device_memory(int device_index, int64_t *current_bytes, int64_t *peak_bytes) {
  return caught([&] {
    const auto stats = at::accelerator::getDeviceStats(static_cast<c10::DeviceIndex>(device_index));
    *current_bytes = stats.allocated_bytes[0].current;
    *peak_bytes = stats.allocated_bytes[0].peak;
  });
}

char *dressage_device_memory_reset(int device_index) {
  return caught([&] { at::accelerator::resetPeakStats(static_cast<c10::DeviceIndex>(device_index)); });
}

} // extern "C"
