// Nothing of it is used by ProcessGroupGloo.hpp.
#pragma once
