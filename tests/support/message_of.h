// Returns the message of the E that an action throws. Fails the test if it throws nothing or something else.
#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <string>

namespace witan::test {

template <class E, class Action>
std::string message_of(Action&& action) {
  try {
    action();
  } catch (const E& e) {
    return e.what();
  } catch (const std::exception& e) {
    ADD_FAILURE() << "threw another error: " << e.what();
    return e.what();
  }
  ADD_FAILURE() << "threw nothing";
  return {};
}

}  // namespace witan::test
