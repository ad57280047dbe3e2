//! Properties that hold for every object and for every text that a client may send.

use causeway_api::selector::{FieldSelector, LabelSelector, SelectableFields, Selector};
use causeway_api::wire::{STORED_PREFIX, client_value, splice};
use causeway_api::{ApiVersion, Kind, Object, ObjectSet, Time, conditions, document, name, schema};
use proptest::prelude::*;
use serde_json::{Map, Value};

fn kinds() -> impl Strategy<Value = Kind> {
    prop::sample::select(Kind::ALL.to_vec())
}

/// A value of the right shape for a schema, with odd but legal contents.
fn of_schema(schema: &Value) -> BoxedStrategy<Value> {
    if let Some(values) = schema["enum"].as_array() {
        return prop::sample::select(values.clone()).boxed();
    }
    match schema["type"].as_str() {
        Some("string") if schema["format"] == "date-time" => (-70_000_000_000i64..260_000_000_000)
            .prop_map(|second| Time::from_second(second).to_string().into())
            .boxed(),
        Some("string") => prop_oneof![
            "[a-zA-Z0-9.:/-]{0,12}",
            any::<String>(),
            Just("10.0.0.1".to_string()),
            Just("10.0.0.0/24".to_string()),
        ]
        .prop_map(Value::from)
        .boxed(),
        Some("integer") => prop_oneof![any::<i64>(), 0i64..100_000].prop_map(Value::from).boxed(),
        Some("boolean") => any::<bool>().prop_map(Value::from).boxed(),
        Some("array") => {
            prop::collection::vec(of_schema(&schema["items"]), 0..4).prop_map(Value::from).boxed()
        }
        _ => match (schema["properties"].as_object(), &schema["additionalProperties"]) {
            (Some(properties), _) => {
                let required: Vec<&str> =
                    schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
                let fields: Vec<_> = properties
                    .iter()
                    .map(|(name, schema)| {
                        let value = of_schema(schema);
                        let value = if required.contains(&name.as_str()) {
                            value.prop_map(Some).boxed()
                        } else {
                            prop::option::of(value).boxed()
                        };
                        (Just(name.clone()), value)
                    })
                    .collect();
                let object = |fields: Vec<(String, Option<Value>)>| {
                    let present = fields.into_iter().filter_map(|(name, value)| Some((name, value?)));
                    Value::Object(present.collect())
                };
                fields.prop_map(object).boxed()
            }
            (None, Value::Object(_)) => prop::collection::btree_map(any::<String>(), any::<String>(), 0..4)
                .prop_map(|fields| {
                    fields
                        .into_iter()
                        .map(|(key, value)| (key, Value::from(value)))
                        .collect::<Map<_, _>>()
                        .into()
                })
                .boxed(),
            (None, _) => Just(serde_json::json!({"f:metadata": {"f:name": {}}})).boxed(),
        },
    }
}

fn values() -> impl Strategy<Value = (Kind, Value)> {
    kinds().prop_flat_map(|kind| (Just(kind), of_schema(schema::of(kind))))
}

/// Arbitrary JSON.
fn foreign() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ];
    let key = prop_oneof![
        ".{0,4}",
        prop::sample::select(vec![
            "metadata",
            "name",
            "labels",
            "ip",
            "port",
            "endpoints",
            "http",
            "status",
            "conditions",
            "subnets"
        ])
        .prop_map(String::from),
    ];
    leaf.prop_recursive(5, 40, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::btree_map(key.clone(), inner, 0..5)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

/// Turns leaves and lists into the zero of their type, where the schema allows one.
fn zero_some(value: &mut Value, choice: &mut impl Iterator<Item = bool>, schema: &Value) {
    let zero = choice.next() == Some(true) && schema["enum"].is_null() && schema["format"] != "date-time";
    match value {
        Value::Object(fields) => {
            for (name, value) in fields.iter_mut().filter(|(name, _)| *name != "metadata") {
                zero_some(value, choice, &schema["properties"][name]);
            }
        }
        Value::Array(items) if zero => items.clear(),
        Value::Array(items) => items.iter_mut().for_each(|item| zero_some(item, choice, &schema["items"])),
        Value::String(text) if zero => text.clear(),
        Value::Number(number) if zero => *number = 0.into(),
        Value::Bool(value) if zero => *value = false,
        _ => {}
    }
}

/// Tells whether every written field is present. Fields that were not written may be defaults.
fn holds(read: &Value, written: &Value) -> bool {
    match (read, written) {
        (Value::Object(read), Value::Object(written)) => {
            written.iter().all(|(name, value)| read.get(name).is_some_and(|read| holds(read, value)))
        }
        (Value::Array(read), Value::Array(written)) => {
            read.len() == written.len() && read.iter().zip(written).all(|(read, value)| holds(read, value))
        }
        (read, written) => read == written,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn what_the_schema_describes_is_decoded_and_nothing_in_it_is_unknown((kind, value) in values()) {
        let decoded = Object::decode(kind, value).map_err(|errors| TestCaseError::fail(format!("{errors:?}")))?;
        prop_assert_eq!(decoded.unknown, Vec::<String>::new());
    }

    #[test]
    fn splice_and_decode_bring_back_the_same_object((kind, value) in values(), revision in any::<u64>(), core in any::<bool>()) {
        let version = if core { ApiVersion::Core } else { ApiVersion::Group };
        let mut object = Object::decode(kind, value).unwrap().object;
        let stored = object.encode();
        prop_assert!(stored.starts_with(STORED_PREFIX.as_bytes()));

        let mut out = Vec::new();
        splice(&mut out, kind, version, revision, &stored);
        let client: Value = serde_json::from_slice(&out).unwrap();
        prop_assert_eq!(client["kind"].as_str(), Some(kind.name()));
        prop_assert_eq!(client["apiVersion"].as_str(), Some(version.as_str()));
        let again = Object::decode(kind, client).unwrap();
        prop_assert_eq!(&again.object.metadata().resource_version, &revision.to_string());
        prop_assert_eq!(again.unknown, Vec::<String>::new());

        object.metadata_mut().resource_version = revision.to_string();
        // A self link is accepted and dropped.
        object.metadata_mut().self_link.clear();
        prop_assert_eq!(again.object.encode(), stored.clone());
        prop_assert_eq!(again.object, object);
        prop_assert_eq!(Object::from_stored(kind, &stored).unwrap().encode(), stored);
    }

    #[test]
    fn what_was_written_reads_back_and_writing_it_again_changes_nothing(
        (kind, value) in values(), zeros in prop::collection::vec(any::<bool>(), 32),
    ) {
        // Half of the written fields become the zero of their type.
        let mut written = value;
        zero_some(&mut written, &mut zeros.iter().copied().cycle(), schema::of(kind));
        let decoded = Object::decode(kind, written.clone()).map_err(|errors| TestCaseError::fail(format!("{errors:?}")))?;
        let stored = document::encode(&decoded.object.document(&decoded.document));
        prop_assert!(stored.starts_with(STORED_PREFIX.as_bytes()));
        let read = client_value(kind, ApiVersion::Group, 7, &stored).unwrap();
        for (name, value) in written.as_object().unwrap().iter().filter(|(name, _)| *name != "metadata") {
            prop_assert!(holds(&read[name], value), "{}: {} of {}", name, read[name], value);
        }
        let again = Object::decode(kind, read.clone()).unwrap();
        prop_assert_eq!(document::encode(&again.object.document(&again.document)), stored.clone());
        let mut object = decoded.object;
        object.metadata_mut().resource_version.clear();
        object.metadata_mut().self_link.clear();
        prop_assert_eq!(Object::from_stored(kind, &stored).unwrap(), object);
    }

    #[test]
    fn defaulting_twice_changes_nothing((kind, value) in values()) {
        let mut once = Object::decode(kind, value).unwrap().object;
        once.default_fields();
        let mut twice = once.clone();
        twice.default_fields();
        prop_assert_eq!(once, twice);
    }

    #[test]
    fn a_name_given_to_the_json_is_the_one_the_object_defaults_to((kind, value) in values()) {
        let mut object = Object::decode(kind, value.clone()).unwrap().object;
        object.default_fields();
        let mut named = value;
        name::default_name(kind, &mut named);
        let name = named.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        prop_assert_eq!(name, object.name());
    }

    #[test]
    fn nothing_foreign_makes_decoding_or_validation_panic(kind in kinds(), mut value in foreign()) {
        name::default_name(kind, &mut value);
        match Object::decode(kind, value) {
            Ok(decoded) => {
                let mut object = decoded.object;
                object.default_fields();
                for error in object.validate(None) {
                    prop_assert!(error.message.len() < 2_000, "{}", error);
                }
            }
            Err(errors) => {
                prop_assert!((1..=16).contains(&errors.len()), "{}", errors.len());
                for error in errors {
                    prop_assert!(error.message.len() < 2_000, "{}", error);
                }
            }
        }
    }

    #[test]
    fn conditions_of_any_object_settle_at_once((kind, value) in values()) {
        let mut object = Object::decode(kind, value).unwrap().object;
        // Two conditions of one type are refused by validation; here they would only hide the property.
        object.status_mut().conditions.clear();
        let objects: ObjectSet = [object.clone()].into_iter().collect();
        let first = conditions::status(&object, &objects, Time::from_second(1));
        *object.status_mut() = first.clone();
        prop_assert_eq!(conditions::status(&object, &objects, Time::from_second(2)), first);
    }

    #[test]
    fn an_object_and_its_stored_form_have_the_same_selectable_fields((kind, value) in values()) {
        let object = Object::decode(kind, value).unwrap().object;
        let stored = object.encode();
        prop_assert_eq!(SelectableFields::from_stored(&stored).unwrap(), SelectableFields::of(&object));
    }

    #[test]
    fn no_text_makes_a_selector_panic(kind in kinds(), text in "[a-z=!,()\\\\ <>.é]{0,30}", any_text in any::<String>()) {
        for text in [text, any_text] {
            let _ = LabelSelector::parse(&text);
            let _ = FieldSelector::parse(kind, &text);
        }
    }

    #[test]
    fn a_written_selector_finds_exactly_the_objects_it_describes(
        labels in prop::collection::btree_map("[a-c]", "[x-z]", 0..3), key in "[a-c]", value in "[x-z]",
    ) {
        let mut object = Object::empty(Kind::ESite);
        object.metadata_mut().labels = labels.clone();
        let matches = |text: String| Selector::parse(Kind::ESite, &text, "").unwrap().matches_object(&object);
        let has = labels.get(&key) == Some(&value);
        prop_assert_eq!(matches(format!("{key}={value}")), has);
        prop_assert_eq!(matches(format!("{key}!={value}")), !has);
        prop_assert_eq!(matches(format!("{key} in ({value})")), has);
        prop_assert_eq!(matches(format!("{key} notin ({value},q)")), !has);
        prop_assert_eq!(matches(key.clone()), labels.contains_key(&key));
        prop_assert_eq!(matches(format!("!{key}")), !labels.contains_key(&key));
    }
}

#[test]
fn the_client_form_is_readable_for_every_kind() {
    for kind in Kind::ALL {
        let value = client_value(kind, ApiVersion::Core, 1, &Object::empty(kind).encode()).unwrap();
        assert_eq!(value["metadata"]["resourceVersion"], "1");
    }
}
