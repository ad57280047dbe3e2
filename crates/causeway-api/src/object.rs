//! One object of any kind, and the operations common to all kinds.
//!
//! `decode` makes an object from a client's JSON, `default_fields` fills in defaults, `validate` returns
//! errors, `wire` encodes it. None of them reads other objects.

use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::check;
use crate::field::{FieldError, FieldErrors};
use crate::kinds::{
    ECommunity, EGateway, EPolicy, EServer, EService, ESite, Event, Kind, Namespace, Service, ServiceExpose,
    VirtualPresence,
};
use crate::meta::{ObjectMeta, ObjectStatus};

/// The interface common to all kinds.
pub trait Resource:
    Serialize + DeserializeOwned + JsonSchema + Clone + PartialEq + Default + Into<Object> + Send + Sync + 'static
{
    const KIND: Kind;
    fn metadata(&self) -> &ObjectMeta;
    fn metadata_mut(&mut self) -> &mut ObjectMeta;
    fn status(&self) -> &ObjectStatus;
    fn status_mut(&mut self) -> &mut ObjectStatus;
    /// The object, if it is of this kind.
    fn from_object(object: Object) -> Option<Self>;
    fn of_object(object: &Object) -> Option<&Self>;
}

/// A decoded object with the paths of unknown fields that the client sent.
#[derive(Clone, PartialEq, Debug)]
pub struct Decoded {
    pub object: Object,
    /// The client's document, without unknown fields and nulls: `Object::document` keeps its zero values.
    pub document: serde_json::Value,
    /// Paths of unknown fields, for a warning or, when the client asked for strictness, a refusal.
    pub unknown: Vec<String>,
}

/// Generates the code that differs between kinds only by name. Each kind is followed by its type inside an
/// `Object`.
macro_rules! objects {
    ($($kind:ident: $held:ty),*) => {
        /// An object of any kind.
        #[derive(Clone, PartialEq, Debug)]
        pub enum Object {
            $($kind($held)),*
        }

        impl Object {
            /// Returns an empty object of this kind.
            pub fn empty(kind: Kind) -> Object {
                match kind {
                    $(Kind::$kind => Object::$kind(Default::default())),*
                }
            }

            pub fn kind(&self) -> Kind {
                match self {
                    $(Object::$kind(_) => Kind::$kind),*
                }
            }

            pub fn metadata(&self) -> &ObjectMeta {
                match self {
                    $(Object::$kind(object) => &object.metadata),*
                }
            }

            pub fn metadata_mut(&mut self) -> &mut ObjectMeta {
                match self {
                    $(Object::$kind(object) => &mut object.metadata),*
                }
            }

            pub fn status(&self) -> &ObjectStatus {
                match self {
                    $(Object::$kind(object) => &object.status),*
                }
            }

            pub fn status_mut(&mut self) -> &mut ObjectStatus {
                match self {
                    $(Object::$kind(object) => &mut object.status),*
                }
            }

            /// Checks the fields of the kind, without its metadata and status.
            fn check_fields(&self, errors: &mut FieldErrors) {
                match self {
                    $(Object::$kind(object) => object.check_fields(errors)),*
                }
            }

            pub(crate) fn deserialize<'de, D: serde::Deserializer<'de>>(
                kind: Kind,
                deserializer: D,
            ) -> Result<Object, D::Error> {
                match kind {
                    $(Kind::$kind => serde::Deserialize::deserialize(deserializer).map(Object::$kind)),*
                }
            }
        }

        // Serializes the fields alone, without the name of the variant: the kind is stored elsewhere.
        impl Serialize for Object {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                match self {
                    $(Object::$kind(object) => object.serialize(serializer)),*
                }
            }
        }
    };
}

/// Implements the trait for kinds that an `Object` holds unboxed.
macro_rules! resources {
    ($($kind:ident),*) => {
        $(
            impl Resource for $kind {
                const KIND: Kind = Kind::$kind;

                fn metadata(&self) -> &ObjectMeta {
                    &self.metadata
                }

                fn metadata_mut(&mut self) -> &mut ObjectMeta {
                    &mut self.metadata
                }

                fn status(&self) -> &ObjectStatus {
                    &self.status
                }

                fn status_mut(&mut self) -> &mut ObjectStatus {
                    &mut self.status
                }

                fn from_object(object: Object) -> Option<$kind> {
                    match object {
                        Object::$kind(object) => Some(object),
                        _ => None,
                    }
                }

                fn of_object(object: &Object) -> Option<&$kind> {
                    match object {
                        Object::$kind(object) => Some(object),
                        _ => None,
                    }
                }
            }

            impl From<$kind> for Object {
                fn from(object: $kind) -> Object {
                    Object::$kind(object)
                }
            }
        )*
    };
}

objects!(
    ESite: ESite,
    EGateway: EGateway,
    EService: EService,
    EServer: EServer,
    EPolicy: EPolicy,
    ServiceExpose: ServiceExpose,
    VirtualPresence: VirtualPresence,
    ECommunity: ECommunity,
    Namespace: Namespace,
    // Larger than the other kinds, and not kept in an `ObjectSet`: boxed, so that it does not determine the
    // size of an `Object`.
    Event: Box<Event>,
    Service: Service
);

resources!(
    ESite,
    EGateway,
    EService,
    EServer,
    EPolicy,
    ServiceExpose,
    VirtualPresence,
    ECommunity,
    Namespace,
    Service
);

impl From<Event> for Object {
    fn from(event: Event) -> Object {
        Object::Event(Box::new(event))
    }
}

impl Object {
    pub fn name(&self) -> &str {
        &self.metadata().name
    }

    /// Returns the key of the object in the store: `plural/name`.
    pub fn key(&self) -> String {
        format!("{}/{}", self.kind().plural(), self.name())
    }

    /// Fills in defaults that follow from the object alone. Idempotent.
    pub fn default_fields(&mut self) {
        match self {
            Object::EGateway(gateway) => gateway.default_fields(),
            Object::EService(service) => service.default_fields(),
            Object::EServer(server) => server.default_fields(),
            Object::ServiceExpose(expose) => expose.default_fields(),
            Object::Event(event) => event.default_fields(),
            Object::ESite(_)
            | Object::EPolicy(_)
            | Object::VirtualPresence(_)
            | Object::ECommunity(_)
            | Object::Namespace(_)
            | Object::Service(_) => {}
        }
    }

    /// Returns all errors of the object itself; with `old`, also forbidden changes of an update.
    pub fn validate(&self, old: Option<&Object>) -> Vec<FieldError> {
        let mut errors = FieldErrors::default();
        check::meta::metadata(&mut errors, self.kind(), self.metadata(), old.map(Object::metadata));
        self.check_fields(&mut errors);
        check::meta::conditions(&mut errors, &self.status().conditions);
        errors.into_vec()
    }

    /// Tells whether the kind's own fields are the same. If not, `generation` rises.
    pub fn same_fields(&self, other: &Object) -> bool {
        fn bare(object: &Object) -> Object {
            let mut bare = object.clone();
            *bare.metadata_mut() = ObjectMeta::default();
            *bare.status_mut() = ObjectStatus::default();
            bare
        }
        bare(self) == bare(other)
    }
}
