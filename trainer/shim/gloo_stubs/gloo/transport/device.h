// ProcessGroupGloo.hpp holds pointers to these only.
#pragma once

namespace gloo {
namespace transport {

class Device;

class UnboundBuffer {
 public:
  virtual ~UnboundBuffer() = 0;
};

} // namespace transport
} // namespace gloo
