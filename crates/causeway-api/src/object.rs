//! One object of any kind, and what all kinds have in common.
//!
//! `decode` makes an object from a client's JSON, `default_fields` fills what was left out, `validate` says what is wrong,
//! `wire` makes it bytes. None of them looks at other objects.

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

/// What every kind has.
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

/// An object with the fields a client sent that no kind has.
#[derive(Clone, PartialEq, Debug)]
pub struct Decoded {
    pub object: Object,
    /// What the client wrote, without what is unknown and without nulls: `Object::document` keeps its zero values.
    pub document: serde_json::Value,
    /// Paths of unknown fields, for a warning or, when the client asked for strictness, a refusal.
    pub unknown: Vec<String>,
}

/// Writes out, for each kind, what only differs by its name. Each is followed by how an `Object` holds it.
macro_rules! objects {
    ($($kind:ident: $held:ty),*) => {
        /// An object of any kind.
        #[derive(Clone, PartialEq, Debug)]
        pub enum Object {
            $($kind($held)),*
        }

        impl Object {
            /// An object of this kind with nothing in it.
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

            /// What differs by kind alone, without its metadata and status.
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

        // Serializes the fields alone, without the name of the variant: the kind stands elsewhere.
        impl Serialize for Object {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                match self {
                    $(Object::$kind(object) => object.serialize(serializer)),*
                }
            }
        }
    };
}

/// Writes out the trait for kinds that an `Object` holds as they are.
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
    // Larger than the others, and not kept in a `ObjectSet`: the size of an `Object` is not to follow it.
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

    /// Where the object lives in the store: `plural/name`.
    pub fn key(&self) -> String {
        format!("{}/{}", self.kind().plural(), self.name())
    }

    /// Fills in what was left out and follows from the object alone. Running it twice changes nothing.
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

    /// Everything that is wrong with the object itself; with `old`, also what an update may not change.
    pub fn validate(&self, old: Option<&Object>) -> Vec<FieldError> {
        let mut errors = FieldErrors::default();
        check::meta::metadata(&mut errors, self.kind(), self.metadata(), old.map(Object::metadata));
        self.check_fields(&mut errors);
        check::meta::conditions(&mut errors, &self.status().conditions);
        errors.into_vec()
    }

    /// Are the kind's own fields the same? If not, `generation` rises.
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
