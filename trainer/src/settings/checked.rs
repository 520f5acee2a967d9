//! Reading a section and checking it are one act: a type that comes out of a file has been checked.

/// Reads and writes a type by its derived `#[serde(remote = "Self")]` functions, with `check` after reading.
macro_rules! checked {
    ($type:ty) => {
        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let settings = Self::deserialize(deserializer)?;
                settings.check().map_err(serde::de::Error::custom)?;
                Ok(settings)
            }
        }

        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                Self::serialize(self, serializer)
            }
        }
    };
}

pub(crate) use checked;
