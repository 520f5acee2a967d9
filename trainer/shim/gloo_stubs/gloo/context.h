// The part of gloo::Context that ProcessGroupGloo.hpp calls; the code is inside of libtorch.
#pragma once

#include <chrono>

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

} // namespace gloo
