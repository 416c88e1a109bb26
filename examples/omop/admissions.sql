-- One row for each stay in hospital: what was known by its end, and whether the patient was
-- back as an inpatient within 30 days of leaving.
--
-- Written for SQLite. In PostgreSQL and DuckDB a single line differs: date(v.visit_end_date,
-- '+30 days') is there v.visit_end_date + INTERVAL '30 days'.
WITH stay AS (
    SELECT visit_occurrence_id, person_id, visit_start_date, visit_end_date
    FROM visit_occurrence
    WHERE visit_concept_id IN (9201, 262)  -- inpatient; emergency room, then inpatient
),
last_value AS (  -- of each measurement the last one of the stay
    SELECT visit_occurrence_id, measurement_concept_id, value_as_number, unit_concept_id,
        ROW_NUMBER() OVER (
            PARTITION BY visit_occurrence_id, measurement_concept_id
            ORDER BY measurement_date DESC, measurement_id DESC
        ) AS place
    FROM measurement
    WHERE value_as_number IS NOT NULL AND measurement_concept_id IN (3016723, 3000963)
)
SELECT
    v.person_id,
    CAST(substr(CAST(v.visit_start_date AS VARCHAR(10)), 1, 4) AS INTEGER) - p.year_of_birth AS age,
    lower(gender.concept_name) AS sex,
    CASE WHEN EXISTS (
        SELECT 1 FROM condition_occurrence AS c
        WHERE c.person_id = v.person_id AND c.condition_start_date <= v.visit_end_date
            -- With the table concept_ancestor: all descendants of 316139, heart failure.
            AND c.condition_concept_id IN (316139, 319835)
    ) THEN 'yes' ELSE 'no' END AS heart_failure,
    -- One unit, whatever the laboratory sent: 8840 is mg/dL, 8749 µmol/L.
    CASE creatinine.unit_concept_id
        WHEN 8840 THEN 88.42 * creatinine.value_as_number
        WHEN 8749 THEN creatinine.value_as_number
    END AS creatinine,
    CASE WHEN haemoglobin.unit_concept_id = 8713 THEN haemoglobin.value_as_number END
        AS haemoglobin,  -- 8713 is g/dL
    CASE WHEN EXISTS (
        SELECT 1 FROM stay AS later
        WHERE later.person_id = v.person_id AND later.visit_start_date > v.visit_end_date
            AND later.visit_start_date <= date(v.visit_end_date, '+30 days')
    ) THEN 'yes' ELSE 'no' END AS readmitted
FROM stay AS v
JOIN person AS p ON p.person_id = v.person_id
LEFT JOIN concept AS gender ON gender.concept_id = p.gender_concept_id
LEFT JOIN last_value AS creatinine
    ON creatinine.visit_occurrence_id = v.visit_occurrence_id
    AND creatinine.measurement_concept_id = 3016723 AND creatinine.place = 1
LEFT JOIN last_value AS haemoglobin
    ON haemoglobin.visit_occurrence_id = v.visit_occurrence_id
    AND haemoglobin.measurement_concept_id = 3000963 AND haemoglobin.place = 1
ORDER BY v.visit_occurrence_id;
