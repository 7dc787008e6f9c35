// Boost.JSON is used from its headers; its functions are compiled here, once.
#include <boost/json/src.hpp>
